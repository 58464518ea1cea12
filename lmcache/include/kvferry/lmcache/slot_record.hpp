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

  std::uint64_t value_bytes;
  std::uint64_t key_bytes;
  /// The gpu::tag_of() the value, or gpu::kNoTag. Its identity is made of its key and its size.
  std::uint64_t tag;
  /// The key, if it fits. Otherwise the key lies after the value in the slot.
  std::array<char, kInlineKeyBytes> key;
};
static_assert(sizeof(SlotRecord) == kRecordBytes);

}  // namespace kvferry::lmcache
