// SPDX-License-Identifier: Apache-2.0
#include "kvferry/gpu/tag_sum.hpp"

#include "kernels/tag_weights.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

// One function for each generation of processors, chosen when the library is loaded. Sanitizers are
// not ready then, and clang 14 does not vectorise these.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define KVFERRY_FOR_EACH_PROCESSOR \
  __attribute__((target_clones("arch=x86-64-v4", "avx2", "default")))
#else
#define KVFERRY_FOR_EACH_PROCESSOR
#endif

namespace kvferry::gpu {

static_assert(std::endian::native == std::endian::little, "as the devices are");

namespace {

constexpr std::size_t kRowBytes = kUnitBytes;

struct Factors {
  std::array<std::array<std::uint64_t, kTagWordsPerVector>, kLoadsInFlight> columns{};
  std::array<std::uint64_t, kTeamLanes> lanes{};
};

constexpr Factors make_factors() {
  Factors factors;
  for (std::uint32_t column = 0; column < kLoadsInFlight; ++column) {
    for (std::uint32_t word = 0; word < kTagWordsPerVector; ++word) {
      factors.columns[column][word] = tag_column(column) * tag_word(word);
    }
  }
  for (std::uint32_t lane = 0; lane < kTeamLanes; ++lane) factors.lanes[lane] = tag_lane(lane);
  return factors;
}

constexpr Factors kFactors = make_factors();

/// Of one whole row, without the row's factor; copies it if `to` is not null.
[[gnu::always_inline]] inline std::uint64_t row_sum(std::byte* to, const std::byte* row) {
  std::uint64_t sums[kTagWordsPerColumn] = {};
  for (std::uint32_t column = 0; column < kLoadsInFlight; ++column) {
    std::uint32_t words[kTagWordsPerColumn];
    std::memcpy(words, row + column * sizeof(words), sizeof(words));
    if (to != nullptr) std::memcpy(to + column * sizeof(words), words, sizeof(words));
    for (std::uint32_t i = 0; i < kTagWordsPerColumn; ++i) {
      sums[i] += words[i] * kFactors.columns[column][i % kTagWordsPerVector];
    }
  }
  std::uint64_t sum = 0;
  for (std::uint32_t lane = 0; lane < kTeamLanes; ++lane) {
    const std::uint64_t* its = sums + lane * kTagWordsPerVector;
    sum += (its[0] + its[1] + its[2] + its[3]) * kFactors.lanes[lane];
  }
  return sum;
}

KVFERRY_FOR_EACH_PROCESSOR
std::uint64_t sum_row(const std::byte* row) { return row_sum(nullptr, row); }

KVFERRY_FOR_EACH_PROCESSOR
std::uint64_t copy_row(std::byte* to, const std::byte* row) { return row_sum(to, row); }

/// The same of a part of a row that begins at byte `begin` of it.
std::uint64_t part_sum(std::byte* to, std::span<const std::byte> bytes, std::size_t begin) {
  std::uint64_t sum = 0;
  while (!bytes.empty()) {
    const std::size_t first = begin % kMaxWidth;
    const std::size_t count = std::min(kMaxWidth - first, bytes.size());
    std::uint32_t words[kTagWordsPerVector] = {};
    std::byte* const its = reinterpret_cast<std::byte*>(words) + first;
    if (count == kMaxWidth) {
      std::memcpy(its, bytes.data(), kMaxWidth);
      if (to != nullptr) std::memcpy(to, its, kMaxWidth);
    } else {
      std::memcpy(its, bytes.data(), count);
      if (to != nullptr) std::memcpy(to, its, count);
    }
    const std::size_t vector = begin / kMaxWidth;
    std::uint64_t part = 0;
    for (std::uint32_t i = 0; i < kTagWordsPerVector; ++i) {
      part += words[i] * kFactors.columns[vector / kTeamLanes][i];
    }
    sum += part * kFactors.lanes[vector % kTeamLanes];
    bytes = bytes.subspan(count);
    begin += count;
    if (to != nullptr) to += count;
  }
  return sum;
}

/// Of `bytes`, which are copied if `to` is not null.
std::uint64_t sum_of(std::byte* to, std::span<const std::byte> bytes, std::uint64_t offset) {
  std::uint64_t sum = 0;
  while (!bytes.empty()) {
    const std::size_t begin = offset % kRowBytes;
    const auto part = bytes.first(std::min(kRowBytes - begin, bytes.size()));
    std::uint64_t of_row = 0;
    if (part.size() < kRowBytes) {
      of_row = part_sum(to, part, begin);
    } else {
      of_row = to != nullptr ? copy_row(to, part.data()) : sum_row(part.data());
    }
    sum += of_row * tag_row(offset / kRowBytes);
    bytes = bytes.subspan(part.size());
    offset += part.size();
    if (to != nullptr) to += part.size();
  }
  return sum;
}

}  // namespace

std::uint64_t tag_sum(std::span<const std::byte> bytes, std::uint64_t offset) {
  return sum_of(nullptr, bytes, offset);
}

std::uint64_t copy_and_sum(std::byte* to, std::span<const std::byte> bytes, std::uint64_t offset) {
  return sum_of(to, bytes, offset);
}

}  // namespace kvferry::gpu
