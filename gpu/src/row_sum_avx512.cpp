// SPDX-License-Identifier: Apache-2.0
#include "row_sum_avx512.hpp"

#include "kvferry/base/check.hpp"
#include "kvferry/base/streaming_copy.hpp"

#include "kernels/tag_weights.hpp"
#include "row_sum_avx2.hpp"

#if defined(__x86_64__) && defined(__GNUC__)

#include <array>
#include <immintrin.h>
#include <numeric>
#include <utility>

#define KVFERRY_AVX512 __attribute__((target("avx512f,avx512dq")))

namespace kvferry::gpu {
namespace {

/// What one instruction takes: a cache line.
constexpr std::size_t kLineBytes = 64;
constexpr std::size_t kWordsPerLine = kLineBytes / kTagWordBytes;
constexpr std::size_t kNumbersPerLine = kLineBytes / sizeof(std::uint64_t);
constexpr std::size_t kLinesPerColumn = kTagWordsPerColumn / kWordsPerLine;
using Lines = std::make_index_sequence<kLinesPerColumn>;

/// Factors of the words of a line, without those of the lanes. The lower halves of the factors are
/// those of the lower and of the upper word of each number of 64 bits, the upper halves those of
/// all words: a product of an upper half counts 2^32 times, so 32 bits of it are enough.
struct alignas(kLineBytes) Factor {
  std::array<std::uint64_t, kNumbersPerLine> even{};
  std::array<std::uint64_t, kNumbersPerLine> odd{};
  std::array<std::uint32_t, kWordsPerLine> high{};
};

struct Factors {
  std::array<Factor, kLoadsInFlight> columns{};
  /// By line of a column.
  alignas(
      kLineBytes) std::array<std::array<std::uint64_t, kNumbersPerLine>, kLinesPerColumn> lanes{};
};

constexpr Factors make_factors() {
  Factors all;
  for (std::uint32_t column = 0; column < kLoadsInFlight; ++column) {
    for (std::uint32_t word = 0; word < kWordsPerLine; ++word) {
      const std::uint64_t factor = tag_column(column) * tag_word(word % kTagWordsPerVector);
      Factor& of = all.columns[column];
      (word % 2 == 0 ? of.even : of.odd)[word / 2] = factor & 0xffff'ffffU;
      of.high[word] = static_cast<std::uint32_t>(factor >> 32U);
    }
  }
  for (std::uint32_t line = 0; line < kLinesPerColumn; ++line) {
    for (std::uint32_t number = 0; number < kNumbersPerLine; ++number) {
      const std::uint32_t vector = line * kNumbersPerLine / 2 + number / 2;
      all.lanes[line][number] = tag_lane(vector);
    }
  }
  return all;
}

constexpr Factors kFactors = make_factors();

/// For each line of a column: numbers of 64 bits, and words that count 2^32 times.
struct Sums {
  __m512i low[kLinesPerColumn];
  __m512i high[kLinesPerColumn];
};

enum class Stores : std::uint8_t { kNone, kPlain, kStreaming };

template <Stores kStores>
KVFERRY_AVX512 inline void store(std::byte* to, __m512i line) {
  if constexpr (kStores == Stores::kPlain) _mm512_storeu_si512(to, line);
  if constexpr (kStores == Stores::kStreaming) {
#if defined(KVFERRY_STREAMING_STORES)
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to), line);
#else
    _mm512_storeu_si512(to, line);
#endif
  }
}

template <Stores kStores, std::size_t kLine>
KVFERRY_AVX512 inline void add_line(Sums& sums, const Factor& factor, std::byte* to,
                                    const std::byte* column, const std::byte* next) {
  constexpr std::size_t kAt = kLine * kLineBytes;
  __builtin_prefetch(next + kAt);
  const __m512i even = _mm512_loadu_si512(column + kAt);
  if constexpr (kStores != Stores::kNone) store<kStores>(to + kAt, even);
  const __m512i odd = _mm512_srli_epi64(even, 32);
  __m512i& low = sums.low[kLine];
  low = _mm512_add_epi64(low, _mm512_mul_epu32(even, _mm512_load_si512(factor.even.data())));
  low = _mm512_add_epi64(low, _mm512_mul_epu32(odd, _mm512_load_si512(factor.odd.data())));
  const __m512i high = _mm512_mullo_epi32(even, _mm512_load_si512(factor.high.data()));
  sums.high[kLine] = _mm512_add_epi32(sums.high[kLine], high);
}

template <Stores kStores, std::size_t... kLine>
KVFERRY_AVX512 inline void add_column(Sums& sums, const Factor& factor, std::byte* to,
                                      const std::byte* column, const std::byte* next,
                                      std::index_sequence<kLine...> /*lines*/) {
  (add_line<kStores, kLine>(sums, factor, to, column, next), ...);
}

/// A line's sum times the factors of its lanes.
KVFERRY_AVX512 inline __m512i times_lanes(__m512i low, __m512i high, std::size_t line) {
  const __m512i even = _mm512_slli_epi64(high, 32);
  const __m512i odd = _mm512_slli_epi64(_mm512_srli_epi64(high, 32), 32);
  const __m512i numbers = _mm512_add_epi64(low, _mm512_add_epi64(even, odd));
  return _mm512_mullo_epi64(numbers, _mm512_load_si512(kFactors.lanes[line].data()));
}

template <std::size_t... kLine>
KVFERRY_AVX512 inline std::uint64_t total(const Sums& sums,
                                          std::index_sequence<kLine...> /*lines*/) {
  __m512i sum = _mm512_setzero_si512();
  ((sum = _mm512_add_epi64(sum, times_lanes(sums.low[kLine], sums.high[kLine], kLine))), ...);
  // _mm512_reduce_add_epi64() adds signed numbers, which must not overflow.
  alignas(kLineBytes) std::array<std::uint64_t, kNumbersPerLine> numbers{};
  _mm512_store_si512(numbers.data(), sum);
  return std::accumulate(numbers.begin(), numbers.end(), std::uint64_t{0});
}

template <std::size_t... kLine>
KVFERRY_AVX512 inline Sums no_sums(std::index_sequence<kLine...> /*lines*/) {
  return {{(static_cast<void>(kLine), _mm512_setzero_si512())...},
          {(static_cast<void>(kLine), _mm512_setzero_si512())...}};
}

/// From the first byte to the last one, so that the stores that bypass the caches fill line after
/// line. The sums of a column's lines stay in registers.
template <Stores kStores>
KVFERRY_AVX512 inline std::uint64_t sum_row(std::byte* to, const std::byte* row,
                                            const std::byte* next) {
  constexpr std::size_t kColumnBytes = kLinesPerColumn * kLineBytes;
  Sums sums = no_sums(Lines());
  for (std::size_t column = 0; column < kLoadsInFlight; ++column) {
    const std::size_t at = column * kColumnBytes;
    std::byte* const its = kStores == Stores::kNone ? nullptr : to + at;
    add_column<kStores>(sums, kFactors.columns[column], its, row + at, next + at, Lines());
  }
  return total(sums, Lines());
}

}  // namespace

bool has_avx512() {
  static const bool kHas =
      __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512dq") != 0;
  return kHas;
}

KVFERRY_AVX512 std::uint64_t row_sum_avx512(const std::byte* row, const std::byte* next) {
  return sum_row<Stores::kNone>(nullptr, row, next);
}

KVFERRY_AVX512 std::uint64_t copy_row_avx512(std::byte* to, const std::byte* row,
                                             const std::byte* next) {
  return sum_row<Stores::kPlain>(to, row, next);
}

KVFERRY_AVX512 std::uint64_t stream_row_avx512(std::byte* to, const std::byte* row,
                                               const std::byte* next) {
  return sum_row<Stores::kStreaming>(to, row, next);
}

}  // namespace kvferry::gpu

#else

namespace kvferry::gpu {

bool has_avx512() { return false; }

std::uint64_t row_sum_avx512(const std::byte* /*row*/, const std::byte* /*next*/) {
  KVFERRY_CHECK(false, "a processor without AVX-512");
}

std::uint64_t copy_row_avx512(std::byte* /*to*/, const std::byte* /*row*/,
                              const std::byte* /*next*/) {
  KVFERRY_CHECK(false, "a processor without AVX-512");
}

std::uint64_t stream_row_avx512(std::byte* /*to*/, const std::byte* /*row*/,
                                const std::byte* /*next*/) {
  KVFERRY_CHECK(false, "a processor without AVX-512");
}

}  // namespace kvferry::gpu

#endif
