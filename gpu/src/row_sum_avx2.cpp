// SPDX-License-Identifier: Apache-2.0
#include "row_sum_avx2.hpp"

#include "kvferry/base/check.hpp"

#if defined(__x86_64__) && defined(__GNUC__)

#include <array>
#include <immintrin.h>

#define KVFERRY_AVX2 __attribute__((target("avx2")))

namespace kvferry::gpu {
namespace {

constexpr std::size_t kGroupsPerColumn = kTagWordsPerColumn * kTagWordBytes / kGroupBytes;
constexpr std::size_t kNumbersPerGroup = kGroupBytes / sizeof(std::uint64_t);
constexpr std::size_t kColumnBytes = kGroupsPerColumn * kGroupBytes;

/// Factors of the 64-bit numbers in a group, with separate lower and upper halves, because an
/// instruction multiplies 32 bits by 32.
struct alignas(32) Factor {
  std::array<std::uint64_t, kNumbersPerGroup> low{};
  std::array<std::uint64_t, kNumbersPerGroup> high{};

  constexpr void set(std::size_t number, std::uint64_t factor) {
    low[number] = factor & 0xffff'ffffU;
    high[number] = factor >> 32U;
  }
};

struct Factors {
  /// The factors of a number's lower and upper word, by column.
  std::array<Factor, kLoadsInFlight> even{};
  std::array<Factor, kLoadsInFlight> odd{};
  /// The factors of the lanes of a group, by its place in a column.
  std::array<Factor, kGroupsPerColumn> lanes{};
};

constexpr Factors make_factors() {
  Factors all;
  for (std::uint32_t column = 0; column < kLoadsInFlight; ++column) {
    for (std::uint32_t number = 0; number < kNumbersPerGroup; ++number) {
      const std::uint32_t word = 2 * number % kTagWordsPerVector;
      all.even[column].set(number, tag_column(column) * tag_word(word));
      all.odd[column].set(number, tag_column(column) * tag_word(word + 1));
    }
  }
  for (std::uint32_t group = 0; group < kGroupsPerColumn; ++group) {
    for (std::uint32_t number = 0; number < kNumbersPerGroup; ++number) {
      all.lanes[group].set(number, tag_lane(2 * group + number / 2));
    }
  }
  return all;
}

constexpr Factors kFactors = make_factors();

KVFERRY_AVX2 inline __m256i load(const void* from) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(from));
}

/// 64-bit numbers, as the sum of a lower part and an upper part that counts 2^32 times.
struct Parts {
  __m256i low;
  __m256i high;
};

KVFERRY_AVX2 inline __m256i whole(const Parts& parts) {
  return _mm256_add_epi64(parts.low, _mm256_slli_epi64(parts.high, 32));
}

/// Adds a group of a column, without the factors of its lanes.
KVFERRY_AVX2 inline void add_group(Parts& sum, const std::byte* group, std::size_t column) {
  const __m256i even = load(group);
  const __m256i odd = _mm256_srli_epi64(even, 32);
  const Factor& of_even = kFactors.even[column];
  const Factor& of_odd = kFactors.odd[column];
  sum.low = _mm256_add_epi64(sum.low, _mm256_mul_epu32(even, load(of_even.low.data())));
  sum.low = _mm256_add_epi64(sum.low, _mm256_mul_epu32(odd, load(of_odd.low.data())));
  sum.high = _mm256_add_epi64(sum.high, _mm256_mul_epu32(even, load(of_even.high.data())));
  sum.high = _mm256_add_epi64(sum.high, _mm256_mul_epu32(odd, load(of_odd.high.data())));
}

/// `numbers` times the factors of the lanes of group `group` of a column.
KVFERRY_AVX2 inline Parts times_lanes(__m256i numbers, std::size_t group) {
  const __m256i low = load(kFactors.lanes[group].low.data());
  const __m256i high = load(kFactors.lanes[group].high.data());
  return {_mm256_mul_epu32(numbers, low),
          _mm256_add_epi64(_mm256_mul_epu32(_mm256_srli_epi64(numbers, 32), low),
                           _mm256_mul_epu32(numbers, high))};
}

KVFERRY_AVX2 inline void add(Parts& sum, const Parts& more) {
  sum.low = _mm256_add_epi64(sum.low, more.low);
  sum.high = _mm256_add_epi64(sum.high, more.high);
}

KVFERRY_AVX2 inline std::uint64_t total(const Parts& sum) {
  alignas(32) std::array<std::uint64_t, kNumbersPerGroup> numbers{};
  _mm256_store_si256(reinterpret_cast<__m256i*>(numbers.data()), whole(sum));
  return numbers[0] + numbers[1] + numbers[2] + numbers[3];
}

}  // namespace

bool has_avx2() {
  static const bool kHas = __builtin_cpu_supports("avx2") != 0;
  return kHas;
}

// It goes along the columns, so that the sums stay in registers.
KVFERRY_AVX2 std::uint64_t row_sum_avx2(const std::byte* row, const std::byte* next) {
  Parts sum{_mm256_setzero_si256(), _mm256_setzero_si256()};
  for (std::size_t group = 0; group < kGroupsPerColumn; ++group) {
    Parts of_group{_mm256_setzero_si256(), _mm256_setzero_si256()};
    for (std::size_t column = 0; column < kLoadsInFlight; ++column) {
      const std::size_t at = column * kColumnBytes + group * kGroupBytes;
      __builtin_prefetch(next + at);
      add_group(of_group, row + at, column);
    }
    add(sum, times_lanes(whole(of_group), group));
  }
  return total(sum);
}

KVFERRY_AVX2 std::uint64_t groups_sum_avx2(const std::byte* groups, std::size_t first,
                                           std::size_t count) {
  Parts sum{_mm256_setzero_si256(), _mm256_setzero_si256()};
  for (std::size_t i = 0; i < count; ++i) {
    Parts of_group{_mm256_setzero_si256(), _mm256_setzero_si256()};
    add_group(of_group, groups + i * kGroupBytes, (first + i) / kGroupsPerColumn);
    add(sum, times_lanes(whole(of_group), (first + i) % kGroupsPerColumn));
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

std::uint64_t groups_sum_avx2(const std::byte* /*groups*/, std::size_t /*first*/,
                              std::size_t /*count*/) {
  KVFERRY_CHECK(false, "a processor without AVX2");
}

}  // namespace kvferry::gpu

#endif
