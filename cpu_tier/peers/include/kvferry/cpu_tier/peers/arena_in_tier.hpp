// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/cpu_tier/memory/arena_source.hpp"

#include <memory>

namespace kvferry::cpu_tier {

class JoinedRank;

/// An arena source for a rank's part of a tier's file, which other engine instances map too. The
/// arena's chunks are the tier's chunks, and their contents stay. Each process populates the
/// missing pages, and no process gives pages back. One of the processes that map the part claims
/// the missing memory; the others check the limits step by step. grant() throws ConfigError if the
/// requested shape or pages differ from the tier's. The rank leaves the tier with leave(), or when
/// the source is destroyed.
[[nodiscard]] std::unique_ptr<ArenaSource> make_tier_source(std::shared_ptr<const JoinedRank> rank);

}  // namespace kvferry::cpu_tier
