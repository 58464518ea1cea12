// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/cpu_tier/slots/slot_lists.hpp"
#include "kvferry/cpu_tier/slots/slot_range.hpp"
#include "kvferry/cpu_tier/slots/slot_table.hpp"

#include <cstdint>
#include <optional>

namespace kvferry::cpu_tier {

/// A range of slots whose memory another slab class could get.
struct ColdRange {
  SlotRange slots;
  /// How much SlotLists::clock() has advanced since the slots were used, as a mean over them;
  /// nothing if all of them are free.
  std::optional<std::uint32_t> age = std::nullopt;
  /// The same for the slot that was used last; 0 if all of them are free.
  std::uint32_t least_age = 0;
};

/// The range, or nothing if a slot of it is named.
[[nodiscard]] std::optional<ColdRange> cold_range(const SlotTable& table, SlotRange range);
/// Searches the ranges [k * `num_slots`, (k + 1) * `num_slots`) that have the slot that has been
/// free for longest, or one of the coldest slots. Returns the one whose slots were used longest
/// ago, if none of them is named.
[[nodiscard]] std::optional<ColdRange> coldest_range(const SlotTable& table,
                                                     std::uint32_t num_slots);
/// The age of the coldest slot, as in ColdRange; nothing if no slot is evictable.
[[nodiscard]] std::optional<std::uint32_t> age_of_coldest(const SlotLists& lists);

}  // namespace kvferry::cpu_tier
