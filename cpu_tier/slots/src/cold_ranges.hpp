// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/cpu_tier/slots/slot_lists.hpp"
#include "kvferry/cpu_tier/slots/slot_range.hpp"
#include "kvferry/cpu_tier/slots/slot_table.hpp"

#include <cstdint>
#include <optional>

namespace kvferry::cpu_tier {

/// A range of slots whose memory another slab class could have.
struct ColdRange {
  SlotRange slots;
  /// How much SlotLists::clock() has gone on since the slots were used, in the mean over them;
  /// nothing if all of them are free.
  std::optional<std::uint32_t> age = std::nullopt;
};

/// Nothing if a slot of the range is named.
[[nodiscard]] std::optional<ColdRange> cold_range(const SlotTable& table, SlotRange range);
/// Of the ranges [k * `num_slots`, (k + 1) * `num_slots`) that hold the longest free slot or one of
/// the coldest: the one whose slots were used longest ago, none of them named.
[[nodiscard]] std::optional<ColdRange> coldest_range(const SlotTable& table,
                                                     std::uint32_t num_slots);
/// Age of the coldest slot, as in ColdRange; nothing if none is evictable.
[[nodiscard]] std::optional<std::uint32_t> age_of_coldest(const SlotLists& lists);

}  // namespace kvferry::cpu_tier
