// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trace/replay.hpp"

#include <cstdint>

namespace kvferry::bench::trace {

/// The share of the trace's tokens that a tier of so many blocks can load, in percent.
inline double loaded_percent(const Trace& trace, std::uint32_t capacity,
                             const cpu_tier::TierOptions& options,
                             HintStyle hints = HintStyle::kNone) {
  const ReplayResult result = replay_tier(trace, capacity, options, 0, hints);
  return 100.0 * static_cast<double>(result.num_loaded_tokens) /
         static_cast<double>(trace.num_tokens());
}

}  // namespace kvferry::bench::trace
