// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/connector/scheduler/scheduler_options.hpp"
#include "kvferry/cpu_tier/slots/tier.hpp"

#include <memory>

namespace kvferry::connector {

/// Makes the tier that the options describe, with a slab class for each of theirs, in the shared
/// tier if there is one. No chunk is usable yet. Throws as Tier does.
[[nodiscard]] std::unique_ptr<cpu_tier::Tier> make_tier(const SchedulerOptions& options);

}  // namespace kvferry::connector
