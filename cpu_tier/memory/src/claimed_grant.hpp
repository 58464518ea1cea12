// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/cpu_tier/memory/arena_source.hpp"
#include "kvferry/cpu_tier/memory/claim_turn.hpp"

namespace kvferry::cpu_tier {

/// The kind of pages for an arena. A resizable arena does not take the machine's pool unless the
/// options say so, because pages of the pool do not go back to the machine. Throws as
/// choose_pages().
[[nodiscard]] PageKind pages_for(const ArenaShape& asked, const ArenaOptions& options);

/// Claims the request or, if the options allow less, this rank's part of what the machine has left.
/// Sets everything but how many chunks a piece has. The turn is this process's. Throws
/// ResourceError.
[[nodiscard]] ArenaGrant claimed_grant(const ClaimTurn& turn, const ArenaShape& asked,
                                       PageKind pages, const ArenaOptions& options);

}  // namespace kvferry::cpu_tier
