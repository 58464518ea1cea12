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
      factors.columns[column][word] = tag_column(column, word);
    }
  }
  for (std::uint32_t lane = 0; lane < kTeamLanes; ++lane) factors.lanes[lane] = tag_lane(lane);
  return factors;
}

constexpr Factors kFactors = make_factors();

/// Of one whole row, without the row's factor.
KVFERRY_FOR_EACH_PROCESSOR
std::uint64_t sum_of_row(const std::byte* row) {
  std::uint64_t sums[kTagWordsPerColumn] = {};
  for (std::uint32_t column = 0; column < kLoadsInFlight; ++column) {
    std::uint32_t words[kTagWordsPerColumn];
    std::memcpy(words, row + column * sizeof(words), sizeof(words));
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

/// Of bytes that are no whole row.
std::uint64_t sum_of_words(std::span<const std::byte> bytes, std::uint64_t offset) {
  std::uint64_t sum = 0;
  while (!bytes.empty()) {
    const std::size_t first = offset % kTagWordBytes;
    const std::size_t count = std::min(kTagWordBytes - first, bytes.size());
    std::uint32_t word = 0;
    std::memcpy(reinterpret_cast<std::byte*>(&word) + first, bytes.data(), count);
    sum += word * tag_weight(offset / kTagWordBytes);
    bytes = bytes.subspan(count);
    offset += count;
  }
  return sum;
}

}  // namespace

std::uint64_t tag_sum(std::span<const std::byte> bytes, std::uint64_t offset) {
  const std::size_t to_row = (kRowBytes - offset % kRowBytes) % kRowBytes;
  const auto head = bytes.first(std::min(to_row, bytes.size()));
  std::uint64_t sum = sum_of_words(head, offset);
  bytes = bytes.subspan(head.size());
  offset += head.size();
  for (; bytes.size() >= kRowBytes; bytes = bytes.subspan(kRowBytes), offset += kRowBytes) {
    sum += sum_of_row(bytes.data()) * tag_row(offset / kRowBytes);
  }
  return sum + sum_of_words(bytes, offset);
}

}  // namespace kvferry::gpu
