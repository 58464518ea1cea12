// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace kvferry::gpu {

/// The sum by which a block is recognised. It adds the block's 32-bit words, each times an odd
/// weight that depends on its place in the packed block, modulo 2^64. The sums of a block's parts
/// add up to the block's sum, wherever it was cut and in any order, so that many threads can
/// compute it. It is a checksum against faults, and no defence against an attacker, because the
/// weights are public.
///
/// What it misses: no change within one word. If two words change places, if a part was shifted or
/// is another block's, or after any other change that does not depend on the weights, it misses one
/// case in 2^63. If only the top k bits of words have changed, it misses one in 2^(31 + k).
///
/// `offset` is the place of `bytes` in the packed block. Works on any alignment; never throws.
[[nodiscard]] std::uint64_t tag_sum(std::span<const std::byte> bytes, std::uint64_t offset);

/// Copies `bytes` to `to`, which must not overlap them, and returns the tag_sum() of what was
/// written. Each byte is read from memory once. The bytes that the caller will read after these are
/// at `next`; they are prefetched and not read, so `next` may be any address.
[[nodiscard]] std::uint64_t copy_and_sum(std::byte* to, std::span<const std::byte> bytes,
                                         std::uint64_t offset, const std::byte* next);
/// The same, but whole rows, 4096 bytes of the packed block, bypass the caches if each row begins a
/// cache line at its destination and the processor has AVX2. finish_streaming()
/// (base/streaming_copy.hpp) comes before other threads may read them.
[[nodiscard]] std::uint64_t copy_rows_streaming_and_sum(std::byte* to,
                                                        std::span<const std::byte> bytes,
                                                        std::uint64_t offset,
                                                        const std::byte* next);
/// The same with stores that all bypass the caches, as copy_streaming() (base/streaming_copy.hpp),
/// and with the sum of what was read.
[[nodiscard]] std::uint64_t copy_streaming_and_sum(std::byte* to, std::span<const std::byte> bytes,
                                                   std::uint64_t offset, const std::byte* next);

/// In the place of a tag: nothing is known about the bytes.
inline constexpr std::uint64_t kNoTag = 0;

/// The tag of a block or an object: its tag_sum(), mixed with its identity, a number made of its
/// key that is as good as random. It is never kNoTag.
[[nodiscard]] constexpr std::uint64_t tag_of(std::uint64_t sum, std::uint64_t identity) {
  const std::uint64_t tag = sum ^ identity;
  return tag == kNoTag ? 1 : tag;
}

}  // namespace kvferry::gpu
