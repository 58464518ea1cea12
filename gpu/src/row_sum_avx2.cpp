// SPDX-License-Identifier: Apache-2.0
#include "row_sum_avx2.hpp"

#include "kvferry/base/check.hpp"
#include "kvferry/base/streaming_copy.hpp"

#if defined(__x86_64__) && defined(__GNUC__)

#include <array>
#include <immintrin.h>

#define KVFERRY_AVX2 __attribute__((target("avx2")))

namespace kvferry::gpu {
namespace {

constexpr std::size_t kGroupsPerColumn = kTagWordsPerColumn * kTagWordBytes / kGroupBytes;
constexpr std::size_t kNumbersPerGroup = kGroupBytes / sizeof(std::uint64_t);
constexpr std::size_t kColumnBytes = kGroupsPerColumn * kGroupBytes;

/// Factors of the words of a group, without those of the lanes. The lower halves of the factors are
/// those of the lower and of the upper word of each number of 64 bits, because an instruction
/// multiplies 32 bits by 32. The upper halves are those of all words: a product of an upper half
/// counts 2^32 times, so 32 bits of it are enough.
struct alignas(32) Factor {
  std::array<std::uint64_t, kNumbersPerGroup> even{};
  std::array<std::uint64_t, kNumbersPerGroup> odd{};
  std::array<std::uint32_t, 2 * kNumbersPerGroup> high{};
};

/// Factors of numbers of 64 bits, lower and upper half apart.
struct alignas(32) LaneFactor {
  std::array<std::uint64_t, kNumbersPerGroup> low{};
  std::array<std::uint64_t, kNumbersPerGroup> high{};
};

struct Factors {
  std::array<Factor, kLoadsInFlight> columns{};
  /// The factors of the lanes of a group, by its place in a column.
  std::array<LaneFactor, kGroupsPerColumn> lanes{};
};

constexpr Factors make_factors() {
  Factors all;
  for (std::uint32_t column = 0; column < kLoadsInFlight; ++column) {
    Factor& of = all.columns[column];
    for (std::uint32_t word = 0; word < 2 * kNumbersPerGroup; ++word) {
      const std::uint64_t factor = tag_column(column) * tag_word(word % kTagWordsPerVector);
      (word % 2 == 0 ? of.even : of.odd)[word / 2] = factor & 0xffff'ffffU;
      of.high[word] = static_cast<std::uint32_t>(factor >> 32U);
    }
  }
  for (std::uint32_t group = 0; group < kGroupsPerColumn; ++group) {
    for (std::uint32_t number = 0; number < kNumbersPerGroup; ++number) {
      const std::uint64_t factor = tag_lane(2 * group + number / 2);
      all.lanes[group].low[number] = factor & 0xffff'ffffU;
      all.lanes[group].high[number] = factor >> 32U;
    }
  }
  return all;
}

constexpr Factors kFactors = make_factors();

KVFERRY_AVX2 inline __m256i load(const void* from) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(from));
}

/// Sums of the words of a group without the factors of its lanes: numbers of 64 bits, and words
/// that count 2^32 times.
struct GroupSum {
  __m256i low;
  __m256i high;
};

/// 64-bit numbers, as the sum of a lower part and an upper part that counts 2^32 times.
struct Parts {
  __m256i low;
  __m256i high;
};

KVFERRY_AVX2 inline __m256i whole(const Parts& parts) {
  return _mm256_add_epi64(parts.low, _mm256_slli_epi64(parts.high, 32));
}

/// A Factor in registers.
struct LoadedFactor {
  __m256i even;
  __m256i odd;
  __m256i high;
};

KVFERRY_AVX2 inline LoadedFactor load(const Factor& factor) {
  return {load(factor.even.data()), load(factor.odd.data()), load(factor.high.data())};
}

KVFERRY_AVX2 inline void add_group(GroupSum& sum, __m256i even, const LoadedFactor& factor) {
  const __m256i odd = _mm256_srli_epi64(even, 32);
  const __m256i low =
      _mm256_add_epi64(_mm256_mul_epu32(even, factor.even), _mm256_mul_epu32(odd, factor.odd));
  sum.low = _mm256_add_epi64(sum.low, low);
  sum.high = _mm256_add_epi32(sum.high, _mm256_mullo_epi32(even, factor.high));
}

/// Adds `group` times the factors of the lanes of group `number` of a column.
KVFERRY_AVX2 inline void add_lanes(Parts& sum, const GroupSum& group, std::size_t number) {
  const __m256i numbers =
      whole({whole({group.low, group.high}), _mm256_srli_epi64(group.high, 32)});
  const __m256i low = load(kFactors.lanes[number].low.data());
  const __m256i high = load(kFactors.lanes[number].high.data());
  sum.low = _mm256_add_epi64(sum.low, _mm256_mul_epu32(numbers, low));
  sum.high = _mm256_add_epi64(sum.high, _mm256_mul_epu32(_mm256_srli_epi64(numbers, 32), low));
  sum.high = _mm256_add_epi64(sum.high, _mm256_mul_epu32(numbers, high));
}

KVFERRY_AVX2 inline std::uint64_t total(const Parts& sum) {
  alignas(32) std::array<std::uint64_t, kNumbersPerGroup> numbers{};
  _mm256_store_si256(reinterpret_cast<__m256i*>(numbers.data()), whole(sum));
  return numbers[0] + numbers[1] + numbers[2] + numbers[3];
}

enum class Stores : std::uint8_t { kNone, kStreaming };

template <Stores kStores>
KVFERRY_AVX2 inline void store(std::byte* to, __m256i group) {
  if constexpr (kStores == Stores::kNone) return;
#if defined(KVFERRY_STREAMING_STORES)
  _mm256_stream_si256(reinterpret_cast<__m256i*>(to), group);
#else
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), group);
#endif
}

/// From the first byte to the last one, so that the stores that bypass the caches fill line after
/// line. The sums of a column's groups, which are too many for the registers, stay in the cache.
template <Stores kStores>
KVFERRY_AVX2 inline std::uint64_t sum_row(std::byte* to, const std::byte* row,
                                          const std::byte* next) {
  GroupSum sums[kGroupsPerColumn];
  for (GroupSum& sum : sums) sum = {_mm256_setzero_si256(), _mm256_setzero_si256()};
  for (std::size_t column = 0; column < kLoadsInFlight; ++column) {
    const LoadedFactor factor = load(kFactors.columns[column]);
    for (std::size_t group = 0; group < kGroupsPerColumn; ++group) {
      const std::size_t at = column * kColumnBytes + group * kGroupBytes;
      if (group % 2 == 0) __builtin_prefetch(next + at);
      const __m256i numbers = load(row + at);
      if constexpr (kStores != Stores::kNone) store<kStores>(to + at, numbers);
      add_group(sums[group], numbers, factor);
    }
  }
  Parts sum{_mm256_setzero_si256(), _mm256_setzero_si256()};
  for (std::size_t group = 0; group < kGroupsPerColumn; ++group) add_lanes(sum, sums[group], group);
  return total(sum);
}

}  // namespace

bool has_avx2() {
  static const bool kHas = __builtin_cpu_supports("avx2") != 0;
  return kHas;
}

KVFERRY_AVX2 std::uint64_t row_sum_avx2(const std::byte* row, const std::byte* next) {
  return sum_row<Stores::kNone>(nullptr, row, next);
}

KVFERRY_AVX2 std::uint64_t stream_row_avx2(std::byte* to, const std::byte* row,
                                           const std::byte* next) {
  return sum_row<Stores::kStreaming>(to, row, next);
}

KVFERRY_AVX2 std::uint64_t groups_sum_avx2(const std::byte* groups, std::size_t first,
                                           std::size_t count) {
  Parts sum{_mm256_setzero_si256(), _mm256_setzero_si256()};
  for (std::size_t i = first; i < first + count; ++i, groups += kGroupBytes) {
    GroupSum of_group{_mm256_setzero_si256(), _mm256_setzero_si256()};
    add_group(of_group, load(groups), load(kFactors.columns[i / kGroupsPerColumn]));
    add_lanes(sum, of_group, i % kGroupsPerColumn);
  }
  return total(sum);
}

}  // namespace kvferry::gpu

#else

namespace kvferry::gpu {

bool has_avx2() { return false; }

std::uint64_t row_sum_avx2(const std::byte* /*row*/, const std::byte* /*next*/) {
  KVFERRY_CHECK(false, "a processor without AVX2");
}

std::uint64_t stream_row_avx2(std::byte* /*to*/, const std::byte* /*row*/,
                              const std::byte* /*next*/) {
  KVFERRY_CHECK(false, "a processor without AVX2");
}

std::uint64_t groups_sum_avx2(const std::byte* /*groups*/, std::size_t /*first*/,
                              std::size_t /*count*/) {
  KVFERRY_CHECK(false, "a processor without AVX2");
}

}  // namespace kvferry::gpu

#endif
