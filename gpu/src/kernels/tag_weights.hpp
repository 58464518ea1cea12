// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/pack_addressing.hpp"

/// The weights of tag_sum.hpp. Word n of a packed block (32 bits, little-endian) has the weight
/// column(n / 128 % 8, n % 4) * lane(n / 4 % 32) * row(n / 1024), odd numbers modulo 2^64. So a
/// unit of the vector kernels (pack_walk.hpp) is one row, a lane of it has one factor, and the
/// factors of its eight loads are constants of the program.
namespace kvferry::gpu {

inline constexpr uint32_t kTagWordBytes = 4;
inline constexpr uint32_t kTagWordsPerVector = kMaxWidth / kTagWordBytes;
inline constexpr uint32_t kTagWordsPerColumn = kTagWordsPerVector * kTeamLanes;
inline constexpr uint32_t kTagWordsPerRow = kTagWordsPerColumn * kLoadsInFlight;
static_assert(kTagWordsPerRow * kTagWordBytes == kUnitBytes, "a unit is a row");

/// An odd number without a pattern, for each `number` below 2^63: the output function of SplitMix64
/// (Steele, Lea, Flood, OOPSLA 2014), a bijection.
KVFERRY_HOST_DEVICE constexpr uint64_t odd_factor(uint64_t number) {
  uint64_t bits = (number + 1) * 0x9e3779b97f4a7c15ULL;
  bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9ULL;
  bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebULL;
  return (bits ^ (bits >> 31)) | 1;
}

KVFERRY_HOST_DEVICE constexpr uint64_t tag_column(uint32_t column, uint32_t word_of_vector) {
  return odd_factor(column * kTagWordsPerVector + word_of_vector);
}

KVFERRY_HOST_DEVICE constexpr uint64_t tag_lane(uint32_t lane) {
  return odd_factor(kLoadsInFlight * kTagWordsPerVector + lane);
}

KVFERRY_HOST_DEVICE constexpr uint64_t tag_row(uint64_t row) {
  return odd_factor(kLoadsInFlight * kTagWordsPerVector + kTeamLanes + row);
}

KVFERRY_HOST_DEVICE constexpr uint64_t tag_weight(uint64_t word) {
  const auto of_row = static_cast<uint32_t>(word % kTagWordsPerRow);
  return tag_column(of_row / kTagWordsPerColumn, of_row % kTagWordsPerVector) *
         tag_lane(of_row / kTagWordsPerVector % kTeamLanes) * tag_row(word / kTagWordsPerRow);
}

}  // namespace kvferry::gpu
