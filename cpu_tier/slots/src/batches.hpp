// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/ids.hpp"

#include <array>
#include <cstddef>

/// How many keys the tier's calls work on at a time. Figures: `kvferry-lab meta`.
namespace kvferry::cpu_tier {

/// Keys looked up at a time where the answer needs no array of its own. The index has 32 keys under
/// way, which it does not between two batches; the arrays of a batch fit into the L1 cache.
inline constexpr std::size_t kBatch = 512;
/// The first of the batches of a search that may end early; then twice as many each time.
inline constexpr std::size_t kFirstBatch = 64;
/// Slots that go through several tables at a time, so that what one fetched the next still has.
inline constexpr std::size_t kStep = 64;
/// The slots of one batch.
using SlotBatch = std::array<SlotId, kBatch>;

}  // namespace kvferry::cpu_tier
