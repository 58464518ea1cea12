// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/pack_addressing.hpp"

/// The weights of tag_sum.hpp. Word n of a packed block (32 bits, little-endian) has the weight
/// word(n % 4) * step ^ (n / 128 % 8) * lane(n / 4 % 32) * row(n / 1024), odd numbers modulo 2^64.
/// So a unit of the vector kernels (pack_walk.hpp) is one row, and the eight loads of a lane are
/// the columns of that row: a lane adds them up by Horner's rule, with five constants.
namespace kvferry::gpu {

inline constexpr uint32_t kTagWordBytes = 4;
inline constexpr uint32_t kTagWordsPerVector = kMaxWidth / kTagWordBytes;
inline constexpr uint32_t kTagWordsPerColumn = kTagWordsPerVector * kTeamLanes;
inline constexpr uint32_t kTagWordsPerRow = kTagWordsPerColumn * kLoadsInFlight;
static_assert(kTagWordsPerRow * kTagWordBytes == kUnitBytes, "a unit is a row");

/// An odd number without a pattern, for each `number` below 2^63. It is the output function of
/// SplitMix64 (Steele, Lea, Flood, OOPSLA 2014), a bijection.
KVFERRY_HOST_DEVICE constexpr uint64_t odd_factor(uint64_t number) {
  uint64_t bits = (number + 1) * 0x9e3779b97f4a7c15ULL;
  bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9ULL;
  bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebULL;
  return (bits ^ (bits >> 31)) | 1;
}

/// Knuth's multiplier for MMIX. Among its first eight powers, no two differ by a multiple of 2^5,
/// and no two add up to a multiple of 2^2.
inline constexpr uint64_t kTagStep = 6364136223846793005ULL;
static_assert(kTagStep % 8 == 5);

KVFERRY_HOST_DEVICE constexpr uint64_t tag_word(uint32_t word_of_vector) {
  return odd_factor(word_of_vector);
}

/// kTagStep to the power of `column`, which is below 8.
KVFERRY_HOST_DEVICE constexpr uint64_t tag_column(uint32_t column) {
  constexpr uint64_t kSquare = kTagStep * kTagStep;
  const uint64_t one = (column & 1) != 0 ? kTagStep : 1;
  const uint64_t two = (column & 2) != 0 ? kSquare : 1;
  const uint64_t four = (column & 4) != 0 ? kSquare * kSquare : 1;
  return one * two * four;
}

KVFERRY_HOST_DEVICE constexpr uint64_t tag_lane(uint32_t lane) {
  return odd_factor(kTagWordsPerVector + lane);
}

KVFERRY_HOST_DEVICE constexpr uint64_t tag_row(uint64_t row) {
  return odd_factor(kTagWordsPerVector + kTeamLanes + row);
}

/// The weight of a word within a row, without the row's factor.
KVFERRY_HOST_DEVICE constexpr uint64_t tag_weight_in_row(uint32_t word) {
  return tag_word(word % kTagWordsPerVector) * tag_column(word / kTagWordsPerColumn) *
         tag_lane(word / kTagWordsPerVector % kTeamLanes);
}

}  // namespace kvferry::gpu
