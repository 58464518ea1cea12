// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/cpu_tier/memory/arena_source.hpp"
#include "kvferry/cpu_tier/memory/claim_turn.hpp"

namespace kvferry::cpu_tier {

/// Claims what is asked for, or this rank's part of what the machine has left where that will do.
/// All but how many chunks a piece has. The turn is this process's. Throws ResourceError.
[[nodiscard]] ArenaGrant claimed_grant(const ClaimTurn& turn, const ArenaShape& asked,
                                       PageKind pages, const ArenaOptions& options);

}  // namespace kvferry::cpu_tier
