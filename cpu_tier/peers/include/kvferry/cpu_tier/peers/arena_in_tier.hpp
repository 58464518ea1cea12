// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/cpu_tier/memory/arena_source.hpp"

#include <memory>

namespace kvferry::cpu_tier {

class JoinedRank;

/// A rank's part of a tier's file, which other engine instances map too: an arena's chunks are the
/// tier's. What is in them stays as it is, each process populates what the file lacks, and no
/// process gives pages back. One of the processes that map the part claims what it lacks; the
/// others check the budget step by step. grant() throws ConfigError if something else than the
/// tier's shape or its pages is asked for. The rank is left by leave(), or else with the source.
[[nodiscard]] std::unique_ptr<ArenaSource> make_tier_source(std::shared_ptr<const JoinedRank> rank);

}  // namespace kvferry::cpu_tier
