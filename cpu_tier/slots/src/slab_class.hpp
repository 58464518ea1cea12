// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/cpu_tier/slots/tier.hpp"

#include "slot_class.hpp"
#include "turnover_clock.hpp"

#include <cstdint>

namespace kvferry::cpu_tier {

/// A SlotClass in the tier, with the chunks that its slots are in, and the clocks by which classes
/// compare their ages. (connector::SlabClass is the scheduler side's option for it.)
struct Tier::SlabClass {
  SlabClass(std::uint32_t max_chunks, const ChunkShape& of, const TierOptions& options,
            Peers& peers)
      : shape(of),
        slots_per_chunk(of.num_slots),
        slots(max_chunks * of.num_slots, options, peers, of),
        ages(clock()),
        marks(clock()) {}

  [[nodiscard]] SlotRange range_of(const TakenChunks& chunks) const {
    const std::uint32_t first = chunks.first.value();
    return {first * slots_per_chunk, (first + chunks.count) * slots_per_chunk};
  }
  [[nodiscard]] SlotRange range_of(ChunkId chunk) const { return range_of(TakenChunks{chunk, 1}); }

  /// Advances with every use of a slot. Wraps.
  [[nodiscard]] std::uint32_t clock() const { return slots.table().lists().clock(); }
  [[nodiscard]] std::uint32_t count(SlotState state) const { return slots.table().count(state); }

  const ChunkShape shape;
  const std::uint32_t slots_per_chunk;
  SlotClass slots;
  TurnoverClock ages;
  /// The same by the wall clock (tend()).
  TurnoverClock marks;
  std::uint32_t num_chunks = 0;
  std::uint64_t num_gained_total = 0;
  std::uint64_t num_evicted_at_gain = 0;
};

}  // namespace kvferry::cpu_tier
