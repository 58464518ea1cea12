// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/ids.hpp"

#include <array>
#include <cstddef>

/// How many keys the tier's calls work on at a time. Figures: `kvferry-lab meta`.
namespace kvferry::cpu_tier {

/// Keys that are looked up at a time, if the answer needs no array of its own. The index has 32
/// keys under way, but not between two batches. The arrays of a batch fit into the L1 cache.
inline constexpr std::size_t kBatch = 512;
/// The first batch of a search that may end early. Each later batch is twice as large as the one
/// before.
inline constexpr std::size_t kFirstBatch = 64;
/// Slots that go through several tables at a time, so that the next table still has what the one
/// before fetched.
inline constexpr std::size_t kStep = 64;
/// The slots of one batch.
using SlotBatch = std::array<SlotId, kBatch>;

}  // namespace kvferry::cpu_tier
