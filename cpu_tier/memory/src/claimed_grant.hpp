// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/cpu_tier/memory/arena_source.hpp"
#include "kvferry/cpu_tier/memory/claim_turn.hpp"

namespace kvferry::cpu_tier {

/// The pages of an arena: what comes and goes is not taken from the machine's pool unless that was
/// asked for, because it would not go back to the machine. Throws as choose_pages().
[[nodiscard]] PageKind pages_for(const ArenaShape& asked, const ArenaOptions& options);

/// Claims what is asked for, or this rank's part of what the machine has left where that will do.
/// All but how many chunks a piece has. The turn is this process's. Throws ResourceError.
[[nodiscard]] ArenaGrant claimed_grant(const ClaimTurn& turn, const ArenaShape& asked,
                                       PageKind pages, const ArenaOptions& options);

}  // namespace kvferry::cpu_tier
