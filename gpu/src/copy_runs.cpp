// SPDX-License-Identifier: Apache-2.0
#include "copy_runs.hpp"

#include "range_text.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

namespace kvferry::gpu {
namespace {

std::string text(const CopyRun& run) {
  return range_text(run.source, run.bytes) + " to " + range_text(run.destination, run.bytes);
}

void check_run(const CopyRun& run, std::size_t index) {
  const auto reject = [&](const char* why) {
    throw DeviceError("copy run " + std::to_string(index) + " (" + text(run) + ") " + why);
  };
  if (run.bytes == 0) reject("is empty");
  const std::uintptr_t highest = std::numeric_limits<std::uintptr_t>::max() - run.bytes;
  if (run.source > highest || run.destination > highest) {
    reject("reaches past the end of the address space");
  }
  if (run.source < run.destination + run.bytes && run.destination < run.source + run.bytes) {
    reject("has overlapping source and destination");
  }
}

bool by_destination(const CopyRun& a, const CopyRun& b) { return a.destination < b.destination; }

/// If there are many runs, it sorts by one byte of the address after the other, among the bytes in
/// which the destinations differ. These are few, because fragments lie at multiples of their size.
/// std::sort takes four times as long for 512 runs in random order, because the processor cannot
/// predict the comparisons, and the caller is the engine's thread.
void sort_by_destination(std::vector<CopyRun>& runs) {
  constexpr std::size_t kFew = 64;
  if (runs.size() < kFew) {
    std::sort(runs.begin(), runs.end(), by_destination);
    return;
  }
  std::uintptr_t differing = 0;
  for (const CopyRun& run : runs) differing |= run.destination ^ runs.front().destination;
  constexpr int kBits = 8;
  std::vector<CopyRun> sorted(runs.size());
  const int end = std::numeric_limits<std::uintptr_t>::digits - std::countl_zero(differing);
  for (int shift = std::countr_zero(differing); shift < end; shift += kBits) {
    const auto digit = [shift](const CopyRun& run) {
      return (run.destination >> static_cast<unsigned>(shift)) % (1U << kBits);
    };
    std::array<std::uint32_t, 1U << kBits> next{};
    for (const CopyRun& run : runs) ++next[digit(run)];
    std::exclusive_scan(next.begin(), next.end(), next.begin(), 0U);
    for (const CopyRun& run : runs) sorted[next[digit(run)]++] = run;
    runs.swap(sorted);
  }
}

void check_disjoint(std::span<const CopyRun> ascending) {
  for (std::size_t i = 1; i < ascending.size(); ++i) {
    const CopyRun& last = ascending[i - 1];
    const CopyRun& next = ascending[i];
    if (last.destination + last.bytes > next.destination) {
      throw DeviceError(
          "two destinations of one batch overlap: " + range_text(last.destination, last.bytes) +
          " and " + range_text(next.destination, next.bytes) +
          "; runs of a batch have no order, so submit them as two batches");
    }
  }
}

}  // namespace

void check_copy_runs(std::span<const CopyRun> runs) {
  if (runs.size() > kMaxBatchRuns) {
    throw DeviceError("a batch of " + std::to_string(runs.size()) + " copies; at most " +
                      std::to_string(kMaxBatchRuns) + " are taken: split it");
  }
  for (std::size_t i = 0; i < runs.size(); ++i) check_run(runs[i], i);
  if (std::is_sorted(runs.begin(), runs.end(), by_destination)) {
    check_disjoint(runs);
    return;
  }
  std::vector<CopyRun> sorted(runs.begin(), runs.end());
  sort_by_destination(sorted);
  check_disjoint(sorted);
}

void check_blocks(const BlockGeometry& geometry, std::span<const BlockId> blocks) {
  for (const BlockId block : blocks) {
    if (block.value() >= geometry.num_blocks) {
      throw DeviceError("block " + std::to_string(block.value()) + " is outside a geometry of " +
                        std::to_string(geometry.num_blocks) + " blocks");
    }
  }
}

void check_sums(PackWay way, std::uintptr_t sums) {
  if (sums == 0 && way != PackWay::kSum) return;
  if (sums == 0 || sums % sizeof(std::uint64_t) != 0) {
    throw DeviceError("sums of blocks cannot be added at " +
                      range_text(sums, sizeof(std::uint64_t)) +
                      ": it has to be device memory, aligned to 8 bytes");
  }
}

std::uint64_t total_bytes(std::span<const CopyRun> runs) {
  std::uint64_t sum = 0;
  for (const CopyRun& run : runs) sum += run.bytes;
  return sum;
}

}  // namespace kvferry::gpu
