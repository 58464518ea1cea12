// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/slots/slot_table.hpp"

#include "kvferry/base/check.hpp"

#include <algorithm>
#include <string>

namespace kvferry::cpu_tier {
namespace {

/// Leases fetch a record this many slots before they change it.
constexpr std::size_t kAhead = 16;

}  // namespace

SlotTable::SlotTable(std::uint32_t max_slots, Segments segments)
    : lists_(max_slots),
      readable_((std::size_t{max_slots} + kBitsPerWord - 1) / kBitsPerWord),
      segments_(segments) {
  counts_[static_cast<std::size_t>(SlotState::kAbsent)] = max_slots;
}

void SlotTable::fail(SlotId slot) const {
  check_failed(
      __FILE__, __LINE__, "slot < max_slots",
      "slot " + std::to_string(slot.value()) + " of " + std::to_string(lists_.max_slots()));
}

void SlotTable::fail(SlotId slot, SlotState expected) const {
  check_failed(__FILE__, __LINE__, "record.state == state",
               "slot " + std::to_string(slot.value()) + " is " + to_string(state(slot)) + ", not " +
                   to_string(expected));
}

void SlotTable::recount(SlotState from, SlotState to, std::size_t num_moved) {
  counts_[static_cast<std::size_t>(from)] -= static_cast<std::uint32_t>(num_moved);
  counts_[static_cast<std::size_t>(to)] += static_cast<std::uint32_t>(num_moved);
}

void SlotTable::set_free(SlotId slot) {
  lists_[slot].state = SlotState::kFree;
  lists_[slot].promise = 0;
  lists_.push_free(slot);
}

void SlotTable::heat_up(SlotRecord& record) {
  if (record.heat < kMaxHeat) ++record.heat;
  if (segments_ == Segments::kTwo) record.segment = Segment::kProtected;
}

void SlotTable::add(SlotRange range) {
  KVFERRY_CHECK(range.first <= range.end && range.end <= lists_.max_slots(),
                "slots after the last one");
  for (std::uint32_t slot = range.end; slot > range.first; --slot) {
    expect(SlotId(slot - 1), SlotState::kAbsent);
    set_free(SlotId(slot - 1));
  }
  const std::uint32_t num_added = range.end - range.first;
  recount(SlotState::kAbsent, SlotState::kFree, num_added);
  num_slots_ += num_added;
  end_ = std::max(end_, range.end);
}

void SlotTable::remove(SlotRange range) {
  for (std::uint32_t slot = range.first; slot < range.end; ++slot) {
    expect(SlotId(slot), SlotState::kFree).state = SlotState::kAbsent;
    lists_.unlink_free(SlotId(slot));
  }
  const std::uint32_t num_removed = range.end - range.first;
  recount(SlotState::kFree, SlotState::kAbsent, num_removed);
  num_slots_ -= num_removed;
}

bool SlotTable::any_named(SlotRange range) const {
  for (std::uint32_t slot = range.first; slot < range.end; ++slot) {
    const SlotState now = state(SlotId(slot));
    if (now > SlotState::kFree && now != SlotState::kEvictable) return true;
  }
  return false;
}

void SlotTable::take(std::span<SlotId> slots, std::span<const Placement> placements) {
  KVFERRY_CHECK(slots.size() <= count(SlotState::kFree),
                "taking " + std::to_string(slots.size()) + " slots of " +
                    std::to_string(count(SlotState::kFree)));
  for (std::size_t i = 0; i < slots.size(); ++i) {
    slots[i] = lists_.top_free();
    SlotRecord& record = expect(slots[i], SlotState::kFree);
    lists_.unlink_free(slots[i]);
    record.state = SlotState::kWritable;
    const Placement placement = placements.empty() ? Placement{} : placements[i];
    record.heat = placement.heat;
    record.segment = segments_ == Segments::kTwo ? placement.segment : Segment::kProbation;
  }
  recount(SlotState::kFree, SlotState::kWritable, slots.size());
}

SlotId SlotTable::turn(const VictimRule& rule) const {
  const SlotId on_probation = lists_.coldest_of(Segment::kProbation);
  const SlotId protected_one = lists_.coldest_of(Segment::kProtected);
  if (protected_one == SlotLists::kNoSlot) return on_probation;
  if (on_probation == SlotLists::kNoSlot) return protected_one;
  if (rule.from == VictimRule::From::kProbationAbove) {
    const float allowed = rule.probation_share * static_cast<float>(num_slots_);
    const auto num_on_probation = static_cast<float>(lists_.num_linked(Segment::kProbation));
    if (num_on_probation > allowed) return on_probation;
  }
  // If both are equally old, the one on probation was stored after the protected one.
  const std::uint32_t age_difference = lists_[protected_one].stamp - lists_[on_probation].stamp;
  return static_cast<std::int32_t>(age_difference) < 0 ? protected_one : on_probation;
}

SlotId SlotTable::choose_victim(const VictimRule& rule) {
  if (const SlotId first = lists_.first_to_leave(); first != SlotLists::kNoSlot) return first;
  while (true) {
    const SlotId deepest = lists_.deepest_stay();
    if (deepest != SlotLists::kNoSlot && lists_.num_stays() > rule.max_stays) return deepest;
    const SlotId its_turn = turn(rule);
    if (its_turn == SlotLists::kNoSlot) {
      return deepest != SlotLists::kNoSlot ? deepest : lists_.longest_awaited();
    }
    const std::uint8_t depth = lists_[its_turn].promise;
    if (depth == 0 || rule.max_stays == 0) return its_turn;
    if (lists_.num_stays() == rule.max_stays) {
      if (deepest == SlotLists::kNoSlot || lists_[deepest].promise < depth) return its_turn;
      stay(its_turn);
      return deepest;
    }
    stay(its_turn);
  }
}

void SlotTable::stay(SlotId slot) {
  SlotRecord& record = lists_[slot];
  lists_.unlink(record);
  record.stays = true;
  lists_.count_turn();
  lists_.link_hottest(slot);
}

void SlotTable::evict(std::span<SlotId> slots, const VictimRule& rule) {
  KVFERRY_CHECK(slots.size() <= count(SlotState::kEvictable),
                "evicting " + std::to_string(slots.size()) + " slots of " +
                    std::to_string(count(SlotState::kEvictable)));
  for (SlotId& slot : slots) {
    // This comes before any victim, because a request that never comes must not keep its blocks for
    // ever.
    if (num_awaited() > 0) {
      const SlotId oldest = lists_.longest_awaited();
      if (lists_.evictions_awaited(oldest) >= num_slots_) end_waiting(oldest);
    }
    slot = choose_victim(rule);
    if (lists_.is_in_turn(lists_[slot])) lists_.count_turn();
    lists_.unlink(expect(slot, SlotState::kEvictable));
    clear_readable(slot);
    set_free(slot);
    lists_.count_eviction();
  }
  recount(SlotState::kEvictable, SlotState::kFree, slots.size());
}

void SlotTable::free(std::span<const SlotId> slots, SlotState from) {
  for (std::size_t i = slots.size(); i-- > 0;) {
    expect(slots[i], from);
    set_free(slots[i]);
  }
  recount(from, SlotState::kFree, slots.size());
}

void SlotTable::commit(std::span<const SlotId> slots, std::optional<SlotId> predecessor) {
  // By segment: the slot that the next slot is linked after.
  std::array<SlotId, kNumSegments> warmer{lists_.above_hottest(Segment::kProbation),
                                          lists_.above_hottest(Segment::kProtected)};
  std::uint32_t stamp = lists_.next_stamp();
  if (predecessor && state(*predecessor) == SlotState::kEvictable) {
    const SlotRecord& before = at(*predecessor);
    if (lists_.is_in_turn(before)) {
      warmer[static_cast<std::size_t>(before.segment)] = *predecessor;
      stamp = before.stamp;
    }
  }
  for (const SlotId slot : slots) {
    SlotRecord& record = expect(slot, SlotState::kWritable);
    record.state = SlotState::kEvictable;
    set_readable(slot);
    record.stamp = stamp;
    SlotId& place = warmer[static_cast<std::size_t>(record.segment)];
    lists_.link_colder_than(place, slot);
    place = slot;
  }
  recount(SlotState::kWritable, SlotState::kEvictable, slots.size());
}

void SlotTable::abort(std::span<const SlotId> slots) {
  for (const SlotId slot : slots) expect(slot, SlotState::kWritable).state = SlotState::kAborted;
  recount(SlotState::kWritable, SlotState::kAborted, slots.size());
}

void SlotTable::quarantine(std::span<const SlotId> slots) {
  for (const SlotId slot : slots) expect(slot, SlotState::kAborted).state = SlotState::kQuarantined;
  recount(SlotState::kAborted, SlotState::kQuarantined, slots.size());
}

std::size_t SlotTable::lease(std::span<const SlotId> slots) {
  std::size_t num_first_leases = 0;
  std::size_t num_done = 0;
  for (; num_done < slots.size(); ++num_done) {
    if (slots.size() - num_done > kAhead) lists_.prefetch(slots[num_done + kAhead]);
    const SlotId slot = slots[num_done];
    SlotRecord& record = at(slot);
    if (record.state != SlotState::kLeased) {
      if (record.state == SlotState::kAbsent) break;
      lists_.unlink(expect(slot, SlotState::kEvictable));
      record.state = SlotState::kLeased;
      ++num_first_leases;
    }
    KVFERRY_CHECK(record.num_users < SlotRecord::kMaxUsers, "a slot has too many leases");
    ++record.num_users;
  }
  recount(SlotState::kEvictable, SlotState::kLeased, num_first_leases);
  return num_done;
}

std::size_t SlotTable::end_leases(std::span<const SlotId> slots) {
  std::size_t num_evictable = 0;
  std::size_t num_freed = 0;
  std::size_t left = slots.size();
  for (; left > 0; --left) {
    if (left > kAhead) lists_.prefetch(slots[left - 1 - kAhead]);
    const SlotId slot = slots[left - 1];
    SlotRecord& record = at(slot);
    if (record.state != SlotState::kLeased && record.state != SlotState::kDying) {
      if (record.state == SlotState::kAbsent) break;
      expect(slot, SlotState::kLeased);
    }
    if (--record.num_users != 0) continue;
    if (record.state == SlotState::kDying) {
      set_free(slot);
      ++num_freed;
    } else {
      record.state = SlotState::kEvictable;
      if (segments_ == Segments::kTwo) record.segment = Segment::kProtected;
      lists_.link_hottest(slot);
      ++num_evictable;
    }
  }
  recount(SlotState::kLeased, SlotState::kEvictable, num_evictable);
  recount(SlotState::kDying, SlotState::kFree, num_freed);
  return slots.size() - left;
}

void SlotTable::touch(SlotId slot) {
  SlotRecord& record = at(slot);
  if (record.state == SlotState::kLeased) {
    heat_up(record);
    return;
  }
  lists_.unlink(expect(slot, SlotState::kEvictable));
  heat_up(record);
  lists_.link_hottest(slot);
}

void SlotTable::await(SlotId slot, std::uint32_t max_awaited) {
  if (max_awaited == 0) return;
  SlotRecord& record = expect(slot, SlotState::kEvictable);
  const std::uint32_t num_waiting = record.num_users;
  const bool stays = lists_.is_owed_to_stay(slot);
  lists_.unlink(record);
  record.awaited = true;
  record.stays = stays;
  record.num_users = std::min(num_waiting + 1, SlotRecord::kMaxUsers);
  lists_.link_hottest(slot);
  if (num_awaited() > max_awaited) end_waiting(lists_.longest_awaited());
}

void SlotTable::end_await(SlotId slot) {
  SlotRecord& record = expect(slot, SlotState::kEvictable);
  if (record.awaited && --record.num_users == 0) end_waiting(slot);
}

void SlotTable::end_waiting(SlotId slot) {
  lists_.unlink(lists_[slot]);
  lists_.link_hottest(slot);
}

void SlotTable::promise(SlotId slot, std::uint8_t promise) {
  SlotRecord& record = at(slot);
  const bool is_early = record.promise == SlotRecord::kLeavesEarly;
  const bool gets_early = promise == SlotRecord::kLeavesEarly;
  KVFERRY_CHECK(!gets_early || (record.state == SlotState::kEvictable && record.promise == 0 &&
                                !record.awaited && !record.stays),
                "a slot that is promised, awaited or stays is to leave early");
  if (record.awaited || !(record.stays || is_early || gets_early)) {
    record.promise = promise;
    return;
  }
  const bool stays = record.stays;
  const std::uint32_t stamp = record.stamp;
  lists_.unlink(record);
  record.stays = stays;
  record.promise = promise;
  lists_.link_hottest(slot);
  if (stays) record.stamp = stamp;
}

bool SlotTable::withstands(SlotId slot, std::uint32_t num_offers) {
  SlotRecord& record = expect(slot, SlotState::kEvictable);
  if (record.heat == 0 || record.heat < num_offers) return false;
  --record.heat;
  return true;
}

void SlotTable::forget(SlotId slot) {
  SlotRecord& record = at(slot);
  if (record.state == SlotState::kLeased) {
    record.state = SlotState::kDying;
    record.promise = 0;
    clear_readable(slot);
    recount(SlotState::kLeased, SlotState::kDying, 1);
    return;
  }
  lists_.unlink(expect(slot, SlotState::kEvictable));
  clear_readable(slot);
  set_free(slot);
  recount(SlotState::kEvictable, SlotState::kFree, 1);
}

void SlotTable::make_evictable(SlotId slot) {
  expect(slot, SlotState::kFree).state = SlotState::kEvictable;
  lists_.unlink_free(slot);
  set_readable(slot);
  lists_.link_hottest(slot);
  recount(SlotState::kFree, SlotState::kEvictable, 1);
}

void SlotTable::set_aside(SlotId slot) {
  expect(slot, SlotState::kFree).state = SlotState::kQuarantined;
  lists_.unlink_free(slot);
  recount(SlotState::kFree, SlotState::kQuarantined, 1);
}

}  // namespace kvferry::cpu_tier
