// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace kvferry::gpu {

/// The sum by which a block is recognised: of its 32-bit words, each times an odd weight that
/// depends on its place in the packed block, modulo 2^64. The sums of a block's parts add up to the
/// block's, wherever it was cut and in whatever order they are added, so that many threads can make
/// it. It is a checksum against faults, and no defence against an attacker: the weights are public.
///
/// What it misses: no change within one word. Of two words that change places, of a part that was
/// shifted or is another block's, and of any other change that does not depend on the weights, one
/// in 2^63. If only the top k bits of words have changed, one in 2^(31 + k).
///
/// `offset` is where `bytes` begin in the packed block. Works on any alignment; throws nothing.
[[nodiscard]] std::uint64_t tag_sum(std::span<const std::byte> bytes, std::uint64_t offset);

/// Copies `bytes` to `to`, where they do not overlap, and returns the tag_sum() of what was
/// written. Each byte comes from memory once.
[[nodiscard]] std::uint64_t copy_and_sum(std::byte* to, std::span<const std::byte> bytes,
                                         std::uint64_t offset);

}  // namespace kvferry::gpu
