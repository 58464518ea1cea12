// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/lmcache/store_geometry.hpp"

#include <array>
#include <cstddef>
#include <cstdint>

namespace kvferry::lmcache {

/// What is in a slot, beside the value: in the chunk itself, so that memory that is shared or kept
/// says what it holds. Written before the slot becomes readable, and read while it is, by any store
/// that has it or has leased it; whether it is, the tier says alone.
struct SlotRecord {
  static constexpr std::size_t kInlineKeyBytes = kRecordBytes - 16;

  std::uint64_t value_bytes;
  std::uint64_t key_bytes;
  /// The key, if it fits; else that lies after the value in the slot.
  std::array<char, kInlineKeyBytes> key;
};
static_assert(sizeof(SlotRecord) == kRecordBytes);

}  // namespace kvferry::lmcache
