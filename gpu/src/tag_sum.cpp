// SPDX-License-Identifier: Apache-2.0
#include "kvferry/gpu/tag_sum.hpp"

#include "kvferry/base/streaming_copy.hpp"

#include "kernels/tag_weights.hpp"
#include "row_sum_avx2.hpp"
#include "row_sum_avx512.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

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

/// The sum of one whole row, without the row's factor.
std::uint64_t row_sum(const std::byte* row) {
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

/// The same for bytes of one vector, of which the first is byte `begin` of a row.
std::uint64_t vector_sum(std::span<const std::byte> bytes, std::size_t begin) {
  std::uint32_t words[kTagWordsPerVector] = {};
  std::memcpy(reinterpret_cast<std::byte*>(words) + begin % kMaxWidth, bytes.data(), bytes.size());
  const std::size_t vector = begin / kMaxWidth;
  std::uint64_t sum = 0;
  for (std::uint32_t i = 0; i < kTagWordsPerVector; ++i) {
    sum += words[i] * kFactors.columns[vector / kTeamLanes][i];
  }
  return sum * kFactors.lanes[vector % kTeamLanes];
}

/// The same for a part of a row, which begins at byte `begin` of the row.
std::uint64_t part_sum(std::span<const std::byte> bytes, std::size_t begin) {
  std::uint64_t sum = 0;
  while (!bytes.empty()) {
    const std::size_t num_groups =
        begin % kGroupBytes == 0 && has_avx2() ? bytes.size() / kGroupBytes : 0;
    const std::size_t count = num_groups != 0
                                  ? num_groups * kGroupBytes
                                  : std::min(kMaxWidth - begin % kMaxWidth, bytes.size());
    sum += num_groups != 0 ? groups_sum_avx2(bytes.data(), begin / kGroupBytes, num_groups)
                           : vector_sum(bytes.first(count), begin);
    bytes = bytes.subspan(count);
    begin += count;
  }
  return sum;
}

/// The sum of bytes within a row, of which the first has `offset` in the block. `next` is the
/// address that will be read after them.
std::uint64_t sum_in_row(std::span<const std::byte> bytes, std::uint64_t offset,
                         const std::byte* next) {
  std::uint64_t sum = 0;
  if (bytes.size() < kRowBytes) {
    sum = part_sum(bytes, offset % kRowBytes);
  } else {
    sum = has_avx512() ? row_sum_avx512(bytes.data(), next)
          : has_avx2() ? row_sum_avx2(bytes.data(), next)
                       : row_sum(bytes.data());
  }
  return sum * tag_row(offset / kRowBytes);
}

/// How many of `size` bytes from `offset` on are in the first row.
std::size_t bytes_in_row(std::uint64_t offset, std::size_t size) {
  return std::min(kRowBytes - offset % kRowBytes, size);
}

constexpr std::size_t kLine = 64;

/// A pass that copies prefetches what it reads two rows later: one row later, a core that copies
/// alone still waits for memory (measured, bench/RESULTS.md, "Tags of blocks").
constexpr std::size_t kBytesAhead = 2 * kRowBytes;

/// What to prefetch while `bytes` are read at `at`. They are followed by those at `next`. If they
/// are shorter than what a pass is ahead, it is the same place of the next ones.
const std::byte* ahead_of(std::span<const std::byte> bytes, std::size_t at, const std::byte* next) {
  const std::size_t ahead = at + std::min(kBytesAhead, bytes.size());
  return ahead < bytes.size() ? bytes.data() + ahead : next + (ahead - bytes.size());
}

/// Copies a row and returns its sum without the row's factor. It prefetches the row at `next`.
using RowCopy = std::uint64_t (*)(std::byte* to, const std::byte* row, const std::byte* next);

/// Bypasses the caches. For processors with AVX2, and destinations at the border of a cache line.
RowCopy row_streamer() { return has_avx512() ? &stream_row_avx512 : &stream_row_avx2; }

/// Copies whole rows with `copy_row`, which reads each byte once, if it is not null. All else is
/// copied and then summed, row by row, because a row is still in the cache then: without AVX-512
/// that is faster than a loop that stores while it sums.
std::uint64_t copy_rows_and_sum(std::byte* to, std::span<const std::byte> bytes,
                                std::uint64_t offset, const std::byte* next, RowCopy copy_row) {
  std::uint64_t sum = 0;
  for (std::size_t at = 0; at < bytes.size();) {
    const auto part = bytes.subspan(at, bytes_in_row(offset + at, bytes.size() - at));
    if (part.size() == kRowBytes && copy_row != nullptr) {
      sum += copy_row(to + at, part.data(), ahead_of(bytes, at, next)) *
             tag_row((offset + at) / kRowBytes);
    } else {
      std::memcpy(to + at, part.data(), part.size());
      sum += sum_in_row({to + at, part.size()}, offset + at, part.data() + part.size());
    }
    at += part.size();
  }
  return sum;
}

}  // namespace

std::uint64_t tag_sum(std::span<const std::byte> bytes, std::uint64_t offset) {
  std::uint64_t sum = 0;
  while (!bytes.empty()) {
    const auto part = bytes.first(bytes_in_row(offset, bytes.size()));
    bytes = bytes.subspan(part.size());
    sum += sum_in_row(part, offset, bytes.data());
    offset += part.size();
  }
  return sum;
}

std::uint64_t copy_and_sum(std::byte* to, std::span<const std::byte> bytes, std::uint64_t offset,
                           const std::byte* next) {
  return copy_rows_and_sum(to, bytes, offset, next, has_avx512() ? &copy_row_avx512 : nullptr);
}

std::uint64_t copy_rows_streaming_and_sum(std::byte* to, std::span<const std::byte> bytes,
                                          std::uint64_t offset, const std::byte* next) {
  const bool rows_begin_lines = (reinterpret_cast<std::uintptr_t>(to) - offset) % kLine == 0;
  if (!has_avx2() || !rows_begin_lines) return copy_and_sum(to, bytes, offset, next);
  return copy_rows_and_sum(to, bytes, offset, next, row_streamer());
}

// Only whole lines of the destination are streamed before the end: the processor would write each
// half of a line to memory by itself.
std::uint64_t copy_streaming_and_sum(std::byte* to, std::span<const std::byte> bytes,
                                     std::uint64_t offset, const std::byte* next) {
  const auto past_line = [to](std::size_t at) {
    return reinterpret_cast<std::uintptr_t>(to + at) % kLine;
  };
  std::uint64_t sum = 0;
  std::size_t num_copied = 0;
  for (std::size_t at = 0; at < bytes.size();) {
    const auto part = bytes.subspan(at, bytes_in_row(offset + at, bytes.size() - at));
    if (part.size() == kRowBytes && has_avx2() && past_line(at) == 0) {
      sum += row_streamer()(to + at, part.data(), ahead_of(bytes, at, next)) *
             tag_row((offset + at) / kRowBytes);
      at += part.size();
      num_copied = at;
      continue;
    }
    sum += sum_in_row(part, offset + at, part.data() + part.size());
    at += part.size();
    const std::size_t end = at == bytes.size() ? at : at - std::min(past_line(at), at);
    if (end <= num_copied) continue;
    copy_streaming(to + num_copied, bytes.data() + num_copied, end - num_copied);
    num_copied = end;
  }
  return sum;
}

}  // namespace kvferry::gpu
