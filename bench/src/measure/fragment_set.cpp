// SPDX-License-Identifier: Apache-2.0
#include "measure/fragment_set.hpp"

#include "kvferry/base/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <numeric>
#include <random>

namespace kvferry::bench {
namespace {

constexpr std::uint64_t kMostFragments = std::numeric_limits<std::int32_t>::max();

}  // namespace

Placement placement_from(std::string_view text) {
  if (text == "contiguous") return {0};
  if (text == "shuffled") return {1};
  constexpr std::string_view kRuns = "runs:";
  if (text.starts_with(kRuns)) {
    Placement placement;
    const char* const end = text.data() + text.size();
    const auto parsed = std::from_chars(text.data() + kRuns.size(), end, placement.run_length);
    if (parsed.ec == std::errc() && parsed.ptr == end && placement.run_length > 0) {
      return placement;
    }
  }
  throw ConfigError(
      fmt::format("'{}' is not a placement: write contiguous, shuffled or runs:8", text));
}

std::string to_string(const Placement& placement) {
  switch (placement.run_length) {
    case 0:
      return "contiguous";
    case 1:
      return "shuffled";
    default:
      return fmt::format("runs:{}", placement.run_length);
  }
}

// Runs are shuffled among places that are one fragment longer than a run, so that no run touches
// the next. A run does not reach from one set into the next: that set's copy would be shorter.
FragmentSets make_fragment_sets(std::uint64_t fragment_bytes, std::uint32_t count,
                                std::uint32_t num_sets, const Placement& placement,
                                std::uint64_t seed) {
  const std::uint64_t length =
      placement.run_length == 0 ? count : std::min(placement.run_length, count);
  const std::uint64_t runs_per_set = (count + length - 1) / length;
  const std::uint64_t num_runs = runs_per_set * num_sets;
  if (num_runs * (length + 1) > kMostFragments) {
    throw ConfigError(fmt::format("{} sets of {} fragments are too many", num_sets, count));
  }
  std::vector<std::uint32_t> order(num_runs);
  std::iota(order.begin(), order.end(), 0U);
  if (placement.run_length != 0) {
    std::mt19937_64 random(seed);
    std::shuffle(order.begin(), order.end(), random);
  }
  FragmentSets sets;
  sets.fragment_bytes = fragment_bytes;
  sets.count = count;
  sets.num_sets = num_sets;
  sets.pool_fragments = static_cast<std::uint32_t>(num_runs * (length + 1));
  sets.places.reserve(std::uint64_t{count} * num_sets);
  for (std::uint64_t run = 0; run < num_runs; ++run) {
    const std::uint64_t before = run % runs_per_set * length;
    const std::uint64_t taken = std::min(length, count - before);
    for (std::uint64_t i = 0; i < taken; ++i) {
      sets.places.emplace_back(static_cast<std::uint32_t>(order[run] * (length + 1) + i));
    }
  }
  return sets;
}

std::vector<gpu::CopyRun> merged_runs(const FragmentSets& sets, std::uint32_t set,
                                      gpu::CopyDirection direction, std::uintptr_t pool,
                                      std::uintptr_t host) {
  const bool to_host = direction == gpu::CopyDirection::kDeviceToHost;
  std::vector<gpu::CopyRun> runs;
  const std::uint64_t first = std::uint64_t{set} * sets.count;
  for (std::uint64_t i = first; i < first + sets.count; ++i) {
    const std::uintptr_t in_pool = pool + sets.places[i].value() * sets.fragment_bytes;
    const std::uintptr_t packed = host + i * sets.fragment_bytes;
    const gpu::CopyRun run{to_host ? packed : in_pool, to_host ? in_pool : packed,
                           sets.fragment_bytes};
    if (!runs.empty() && runs.back().destination + runs.back().bytes == run.destination &&
        runs.back().source + runs.back().bytes == run.source) {
      runs.back().bytes += run.bytes;
    } else {
      runs.push_back(run);
    }
  }
  return runs;
}

}  // namespace kvferry::bench
