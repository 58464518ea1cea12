// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trace/policies.hpp"
#include "trace/time_saved.hpp"
#include "trace/trace_row.hpp"

#include <cstdint>
#include <optional>

namespace kvferry::bench {
struct Bench;
}

namespace kvferry::bench::trace {

/// The options of a replay.
struct ReplayOptions {
  std::uint32_t num_queued = 0;  ///< Number of requests that are known before their turn.
  HintStyle hints = HintStyle::kNone;
  std::uint32_t num_warm_ups = 0;
  std::uint32_t num_rounds = 1;
  /// The share of its blocks to which the trace was reduced. Capacities are reduced too, and counts
  /// are scaled up again.
  double sample = 1;
  TimeModel time;
};

/// A replay and its cost.
struct MeasuredReplay {
  ReplayResult result;  ///< Its time is the median of the rounds.
  bool verified = false;
};

/// Replays in the given number of rounds, and checks the counts of each (check_replay()). If the
/// capacity exceeds the trace's distinct blocks, their number is used instead: in both cases
/// nothing is ever evicted.
[[nodiscard]] MeasuredReplay measure_replay(Bench& bench, const Trace& trace,
                                            std::uint64_t capacity, const Policy& policy,
                                            const ReplayOptions& options);

[[nodiscard]] TraceRow row_of(const MeasuredReplay& replay, const MeasuredReplay& optimum,
                              std::uint64_t capacity, const Policy& policy, const TimeModel& time);

}  // namespace kvferry::bench::trace
