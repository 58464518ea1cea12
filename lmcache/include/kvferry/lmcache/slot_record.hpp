// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/lmcache/store_geometry.hpp"

#include <array>
#include <atomic>
#include <cstdint>

namespace kvferry::lmcache {

enum class RecordState : std::uint8_t {
  kFree,     ///< Nothing in the slot is worth anything. Zeroed memory says so.
  kWriting,  ///< Somebody writes the value.
  kReadable  ///< Value, size and key are whole.
};

/// What is in a slot, beside the value: lives in the memory itself, so that a file of it says what
/// it holds. One word says whether the rest counts; it is written last and taken back first.
struct SlotRecord {
  static constexpr std::size_t kInlineKeyBytes = kRecordBytes - 32;

  /// RecordState in the low 8 bits; above, a number that goes up with every reservation.
  std::atomic<std::uint64_t> word;
  std::uint64_t value_bytes;
  std::uint64_t key_bytes;
  /// Of the number, the sizes and the key: other programs may have written into a file.
  std::uint64_t check;
  /// The key, if it fits; else that lies behind the value in the slot.
  std::array<char, kInlineKeyBytes> key;

  [[nodiscard]] static constexpr std::uint64_t word_of(std::uint64_t number, RecordState state) {
    return number << 8U | static_cast<std::uint64_t>(state);
  }
  [[nodiscard]] static constexpr RecordState state_of(std::uint64_t word) {
    return static_cast<RecordState>(word & 0xffU);
  }
  [[nodiscard]] static constexpr std::uint64_t number_of(std::uint64_t word) { return word >> 8U; }
};
static_assert(sizeof(SlotRecord) == kRecordBytes);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

}  // namespace kvferry::lmcache
