// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "measure/verifier.hpp"
#include "trace/replay.hpp"

#include <cstdint>
#include <string_view>

namespace kvferry::bench::trace {

/// Checks a replay's counts against each other and the trace, in the verifier's round. Hits and
/// misses add up to the accesses. Blocks that were stored and not evicted are in the tier, and fit.
/// Loads are hits. `what` names the replay.
void check_replay(Verifier& verifier, const Trace& trace, std::uint32_t capacity,
                  const ReplayResult& result, std::string_view what);

}  // namespace kvferry::bench::trace
