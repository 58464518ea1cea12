// SPDX-License-Identifier: Apache-2.0
#include "cold_ranges.hpp"

#include <algorithm>
#include <cstddef>
#include <limits>

namespace kvferry::cpu_tier {
namespace {

/// How many ranges are compared to find the coldest one, by segment. Sets are stored and left in
/// runs, so the slots of a range mostly have the same age, and the first ranges are good enough.
constexpr std::size_t kCandidates = 4;
/// How many slots are looked at to find these ranges.
constexpr std::size_t kMostSteps = 64;

}  // namespace

std::optional<ColdRange> cold_range(const SlotTable& table, SlotRange range) {
  if (table.any_named(range)) return std::nullopt;
  std::uint64_t sum = 0;
  std::uint64_t num_evictable = 0;
  std::uint32_t oldest = 0;
  std::uint32_t youngest = std::numeric_limits<std::uint32_t>::max();
  for (std::uint32_t i = range.first; i < range.end; ++i) {
    if (table.state(SlotId(i)) != SlotState::kEvictable) continue;
    const std::uint32_t age = table.lists().age(SlotId(i));
    oldest = std::max(oldest, age);
    youngest = std::min(youngest, age);
    sum += age;
    ++num_evictable;
  }
  if (num_evictable == 0) return ColdRange{range};
  // Free slots count as old as the oldest slot.
  const std::uint64_t num_free = range.end - range.first - num_evictable;
  sum += num_free * oldest;
  return ColdRange{range, static_cast<std::uint32_t>(sum / (range.end - range.first)), youngest};
}

std::optional<ColdRange> coldest_range(const SlotTable& table, std::uint32_t num_slots) {
  const auto range_of = [num_slots](SlotId slot) {
    const std::uint32_t first = slot.value() / num_slots * num_slots;
    return SlotRange{first, first + num_slots};
  };
  const SlotLists& lists = table.lists();
  std::optional<ColdRange> coldest;
  const auto consider = [&](SlotId slot) {
    const std::optional<ColdRange> range = cold_range(table, range_of(slot));
    if (!range) return;
    if (!coldest || !range->age || (coldest->age && *range->age > *coldest->age)) coldest = range;
  };
  const SlotId free = lists.longest_free();
  if (free != SlotLists::kNoSlot) consider(free);
  for (const Segment segment : {Segment::kProbation, Segment::kProtected}) {
    std::uint32_t last = SlotLists::kNoSlot.value();
    std::size_t num_candidates = 0;
    SlotId slot = lists.coldest_of(segment);
    for (std::size_t step = 0; step < kMostSteps && num_candidates < kCandidates; ++step) {
      if (slot == SlotLists::kNoSlot || (coldest && !coldest->age)) break;
      if (const std::uint32_t first = range_of(slot).first; first != last) {
        consider(slot);
        last = first;
        ++num_candidates;
      }
      slot = lists.hotter_than(slot);
    }
  }
  return coldest;
}

std::optional<std::uint32_t> age_of_coldest(const SlotLists& lists) {
  std::optional<std::uint32_t> age;
  for (const Segment segment : {Segment::kProbation, Segment::kProtected}) {
    const SlotId slot = lists.coldest_of(segment);
    if (slot == SlotLists::kNoSlot) continue;
    age = std::max(age.value_or(0), lists.age(slot));
  }
  return age;
}

}  // namespace kvferry::cpu_tier
