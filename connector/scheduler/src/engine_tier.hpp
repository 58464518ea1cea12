// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/connector/scheduler/scheduler_options.hpp"
#include "kvferry/cpu_tier/slots/tier.hpp"

#include "watched_peers.hpp"

#include <memory>

namespace kvferry::connector {

/// Makes the tier that the options describe, with a slab class for each of theirs, in the shared
/// tier if there is one. `answers` records what its peers answer, and outlives it; null: nothing
/// does. No chunk is usable yet. Throws as Tier does.
[[nodiscard]] std::unique_ptr<cpu_tier::Tier> make_tier(const SchedulerOptions& options,
                                                        PeerJournal* answers = nullptr);

}  // namespace kvferry::connector
