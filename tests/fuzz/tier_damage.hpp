// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tier_file.hpp"

#include <cstdint>

namespace kvferry::fuzz {

/// One damage to a tier's metadata.
struct Damage {
  enum class Kind : std::uint8_t {
    kFlipBit,
    kSetWord,   ///< To one of a few figures that code trips over.
    kTornLine,  ///< A cache line is that of an earlier moment.
    kZeroLine,
    kSwapLines,
    kTornPage,
    kZeroPage,
    kSwapPages,
    kTornBehind,  ///< All behind a line is of an earlier moment.
  };
  static constexpr std::uint8_t kNumKinds = 9;

  Kind kind = Kind::kFlipBit;
  std::uint8_t part = 0;    ///< Of the file: header, instances, chunks, hints, slots.
  std::uint16_t where = 0;  ///< In the part.
  std::uint16_t what = 0;   ///< Which bit or figure, or where the other one is.
};

/// Nobody has the file open.
void inflict(const Damage& damage, const TierFile& file);
/// What damage that metadata can show leads to is wrong bytes; where they are whole, and say what
/// is elsewhere only because they are of an earlier moment, nothing can tell: such slots are given
/// the bytes that they say they have, and are not withdrawn. Nor can it tell that copies end, where
/// a record says that they may not.
void excuse(const TierFile& file);

/// What a slot has for a key.
void write_content(std::span<std::byte> slot, std::uint64_t key_number, std::uint64_t name_space);
[[nodiscard]] bool is_content(std::span<const std::byte> slot, std::uint64_t key_number,
                              std::uint64_t name_space);
[[nodiscard]] cpu_tier::BlockKey key_of(std::uint64_t key_number);

}  // namespace kvferry::fuzz
