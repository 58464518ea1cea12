// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "measure/verifier.hpp"
#include "trace/replay.hpp"

#include <cstdint>
#include <string_view>

namespace kvferry::bench::trace {

/// Holds a replay's counts against each other and the trace, in the verifier's round: hits and
/// misses are the accesses, what was stored and not evicted is in the tier and fits in, loads are
/// hits. `what` names the replay.
void check_replay(Verifier& verifier, const Trace& trace, std::uint32_t capacity,
                  const ReplayResult& result, std::string_view what);

}  // namespace kvferry::bench::trace
