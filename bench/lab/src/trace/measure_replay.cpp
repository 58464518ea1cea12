// SPDX-License-Identifier: Apache-2.0
#include "trace/measure_replay.hpp"

#include "measure/samples.hpp"
#include "progress.hpp"
#include "subcommand.hpp"
#include "trace/check_replay.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace kvferry::bench::trace {

namespace {

/// Scales the counts of a sample of the accesses up to those of all accesses.
ReplayResult scaled(ReplayResult result, double factor) {
  if (factor == 1) return result;
  for (std::uint64_t* const count :
       {&result.num_accesses, &result.num_hits, &result.num_misses, &result.num_loads,
        &result.num_loaded_tokens, &result.num_stores, &result.num_evictions, &result.num_resident,
        &result.num_won, &result.num_lost}) {
    *count = static_cast<std::uint64_t>(std::llround(factor * static_cast<double>(*count)));
  }
  return result;
}

}  // namespace

MeasuredReplay measure_replay(Bench& bench, const Trace& trace, std::uint64_t capacity,
                              const Policy& policy, const ReplayOptions& options) {
  const auto sampled = static_cast<std::uint64_t>(
      std::max(1.0, std::round(options.sample * static_cast<double>(capacity))));
  const auto used = static_cast<std::uint32_t>(
      std::min<std::uint64_t>(sampled, std::max<std::uint32_t>(trace.num_distinct(), 1)));
  const std::uint64_t mismatches_before = bench.verifier.num_mismatches();
  const std::string what = fmt::format("{}, {}", trace.name(), policy.name);
  bench.progress.begin_row(fmt::format("{}, {} blocks", what, capacity));
  MeasuredReplay measured;
  Samples times;
  const std::uint32_t num_rounds = options.num_warm_ups + options.num_rounds;
  for (std::uint32_t round = 0; round < num_rounds; ++round) {
    bench.progress.round(round, num_rounds);
    static_cast<void>(bench.verifier.next_round());
    const ReplayResult result = policy.replay(trace, used, options.num_queued, options.hints);
    check_replay(bench.verifier, trace, used, result, what);
    if (round == 0) measured.result = result;
    bench.verifier.check_count(result.num_hits, measured.result.num_hits,
                               what + ": hits, as in the round before");
    if (round < options.num_warm_ups) continue;
    times.add(std::chrono::nanoseconds(static_cast<std::int64_t>(1e9 * result.seconds)));
  }
  measured.result.seconds = 1e-6 * times.percentile_us(0.5);
  measured.result = scaled(measured.result, 1 / options.sample);
  measured.verified = bench.verifier.num_mismatches() == mismatches_before;
  return measured;
}

TraceRow row_of(const MeasuredReplay& replay, const MeasuredReplay& optimum, std::uint64_t capacity,
                const Policy& policy, const TimeModel& time) {
  const ReplayResult& result = replay.result;
  const double block_gb = 1e-9 * static_cast<double>(time.block_bytes);
  const auto gb = [&](std::uint64_t blocks) { return static_cast<double>(blocks) * block_gb; };
  const TimeEstimate estimate = estimate_time(result, time);
  TraceRow row;
  row.capacity_blocks = capacity;
  row.capacity_gb = gb(capacity);
  row.policy = policy.name;
  row.hit_percent = result.hit_percent();
  if (optimum.result.num_loads > 0) {
    row.percent_of_optimum = 100.0 * static_cast<double>(result.num_loads) /
                             static_cast<double>(optimum.result.num_loads);
  }
  row.loadable_hit_percent = result.load_percent();
  row.loaded_blocks = result.num_loads;
  row.loaded_gb = gb(result.num_loads);
  row.stored_blocks = result.num_stores;
  row.stored_gb = gb(result.num_stores);
  row.evicted_blocks = result.num_evictions;
  row.saved_s = estimate.saved_s;
  row.load_s = estimate.load_s;
  row.store_s = estimate.store_s;
  row.replay_s = result.seconds;
  if (result.seconds > 0) {
    row.million_accesses_per_s = 1e-6 * static_cast<double>(result.num_accesses) / result.seconds;
  }
  row.verified = replay.verified;
  return row;
}

}  // namespace kvferry::bench::trace
