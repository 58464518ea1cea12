// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/lmcache/store_geometry.hpp"

#include <array>
#include <cstddef>
#include <cstdint>

namespace kvferry::lmcache {

/// The description of a slot's value. It lies in the chunk itself, so that shared or kept memory
/// describes its own contents. It is written before the slot becomes readable. While the slot is
/// readable, any store that has the slot or has leased it can read the record. Only the tier knows
/// whether the slot is readable.
struct SlotRecord {
  static constexpr std::size_t kInlineKeyBytes = kRecordBytes - 24;
  /// Nothing is known of the value's bytes.
  static constexpr std::uint64_t kNoTag = 0;

  std::uint64_t value_bytes;
  std::uint64_t key_bytes;
  /// What the value is recognised by, or kNoTag.
  std::uint64_t tag;
  /// The key, if it fits. Otherwise the key lies after the value in the slot.
  std::array<char, kInlineKeyBytes> key;
};
static_assert(sizeof(SlotRecord) == kRecordBytes);

/// The tag of a value: the gpu::tag_sum() of its bytes, and a number made of its key and its size,
/// which is as good as random. Never kNoTag.
[[nodiscard]] constexpr std::uint64_t value_tag(std::uint64_t sum, std::uint64_t identity) {
  const std::uint64_t tag = sum ^ identity;
  return tag == SlotRecord::kNoTag ? 1 : tag;
}

}  // namespace kvferry::lmcache
