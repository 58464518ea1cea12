// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/slots/slot_table.hpp"

#include "kvferry/base/check.hpp"

#include <algorithm>
#include <string>

namespace kvferry::cpu_tier {

const char* to_string(SlotState state) {
  switch (state) {
    case SlotState::kAbsent:
      return "absent";
    case SlotState::kFree:
      return "free";
    case SlotState::kWritable:
      return "writable";
    case SlotState::kAborted:
      return "aborted";
    case SlotState::kEvictable:
      return "evictable";
    case SlotState::kLeased:
      return "leased";
    case SlotState::kDying:
      return "dying";
    case SlotState::kQuarantined:
      return "quarantined";
  }
  return "unknown";
}

SlotTable::SlotTable(std::uint32_t max_slots, Segments segments)
    : records_(std::size_t{max_slots} + kNumRings),
      readable_((std::size_t{max_slots} + kBitsPerWord - 1) / kBitsPerWord),
      segments_(segments),
      max_slots_(max_slots) {
  counts_[static_cast<std::size_t>(SlotState::kAbsent)] = max_slots;
  for (std::uint32_t ring = 0; ring < kNumRings; ++ring) {
    records_[sentinel(ring)].colder = sentinel(ring);
    records_[sentinel(ring)].hotter = sentinel(ring);
  }
}

SlotTable::Record& SlotTable::at(SlotId slot) {
  KVFERRY_CHECK(slot.value() < max_slots_,
                "slot " + std::to_string(slot.value()) + " of " + std::to_string(max_slots_));
  return records_[slot.value()];
}

SlotTable::Record& SlotTable::expect(SlotId slot, SlotState state) {
  Record& record = at(slot);
  KVFERRY_CHECK(record.state == state, "slot " + std::to_string(slot.value()) + " is " +
                                           to_string(record.state) + ", not " + to_string(state));
  return record;
}

void SlotTable::recount(SlotState from, SlotState to, std::size_t num_moved) {
  counts_[static_cast<std::size_t>(from)] -= static_cast<std::uint32_t>(num_moved);
  counts_[static_cast<std::size_t>(to)] += static_cast<std::uint32_t>(num_moved);
}

void SlotTable::push_free(SlotId slot) {
  Record& record = records_[slot.value()];
  record.state = SlotState::kFree;
  record.hotter = free_top();
  record.colder = sentinel(kFreeRing);
  records_[record.hotter].colder = slot.value();
  records_[record.colder].hotter = slot.value();
}

void SlotTable::unlink_free(std::uint32_t slot) {
  const Record& record = records_[slot];
  records_[record.colder].hotter = record.hotter;
  records_[record.hotter].colder = record.colder;
}

void SlotTable::link_hottest(SlotId slot) {
  Record& record = records_[slot.value()];
  record.stamp = record.awaited ? num_evictions_ : ++clock_;
  link_colder_than(sentinel(list_of(record)), slot);
}

void SlotTable::link_colder_than(std::uint32_t warmer, SlotId slot) {
  Record& record = records_[slot.value()];
  record.colder = records_[warmer].colder;
  record.hotter = warmer;
  records_[record.colder].hotter = slot.value();
  records_[warmer].colder = slot.value();
  ++num_linked_[list_of(record)];
}

void SlotTable::unlink(Record& record) {
  records_[record.colder].hotter = record.hotter;
  records_[record.hotter].colder = record.colder;
  --num_linked_[list_of(record)];
  record.awaited = false;
  record.num_users = 0;
}

void SlotTable::heat_up(Record& record) {
  if (record.heat < kMaxHeat) ++record.heat;
  if (segments_ == Segments::kTwo) record.segment = Segment::kProtected;
}

void SlotTable::add(SlotRange range) {
  KVFERRY_CHECK(range.first <= range.end && range.end <= max_slots_, "slots behind the last one");
  for (std::uint32_t slot = range.end; slot > range.first; --slot) {
    expect(SlotId(slot - 1), SlotState::kAbsent);
    push_free(SlotId(slot - 1));
  }
  const std::uint32_t num_added = range.end - range.first;
  recount(SlotState::kAbsent, SlotState::kFree, num_added);
  num_slots_ += num_added;
  end_ = std::max(end_, range.end);
}

void SlotTable::remove(SlotRange range) {
  for (std::uint32_t slot = range.first; slot < range.end; ++slot) {
    expect(SlotId(slot), SlotState::kFree).state = SlotState::kAbsent;
    unlink_free(slot);
  }
  const std::uint32_t num_removed = range.end - range.first;
  recount(SlotState::kFree, SlotState::kAbsent, num_removed);
  num_slots_ -= num_removed;
}

bool SlotTable::any_named(SlotRange range) const {
  for (std::uint32_t slot = range.first; slot < range.end; ++slot) {
    const SlotState state = records_[slot].state;
    if (state > SlotState::kFree && state != SlotState::kEvictable) return true;
  }
  return false;
}

SlotId SlotTable::longest_free() const {
  return victim_or_none(records_[sentinel(kFreeRing)].colder);
}

SlotId SlotTable::coldest_of(Segment segment) const {
  return victim_or_none(coldest(static_cast<std::uint32_t>(segment)));
}

SlotId SlotTable::hotter_than(SlotId slot) const {
  return victim_or_none(records_[slot.value()].hotter);
}

std::uint32_t SlotTable::age(SlotId slot) const {
  const Record& record = records_[slot.value()];
  return record.awaited ? 0 : clock_ - record.stamp;
}

void SlotTable::take(std::span<SlotId> slots, std::span<const Placement> placements) {
  KVFERRY_CHECK(slots.size() <= count(SlotState::kFree),
                "taking " + std::to_string(slots.size()) + " slots of " +
                    std::to_string(count(SlotState::kFree)));
  for (std::size_t i = 0; i < slots.size(); ++i) {
    slots[i] = SlotId(free_top());
    Record& record = expect(slots[i], SlotState::kFree);
    unlink_free(slots[i].value());
    record.state = SlotState::kWritable;
    const Placement placement = placements.empty() ? Placement{} : placements[i];
    record.heat = placement.heat;
    record.segment = segments_ == Segments::kTwo ? placement.segment : Segment::kProbation;
  }
  recount(SlotState::kFree, SlotState::kWritable, slots.size());
}

std::uint32_t SlotTable::victim_list(const VictimRule& rule) const {
  constexpr auto kProbation = static_cast<std::uint32_t>(Segment::kProbation);
  constexpr auto kProtected = static_cast<std::uint32_t>(Segment::kProtected);
  if (num_linked_[kProbation] == 0 && num_linked_[kProtected] == 0) return kAwaitedList;
  if (num_linked_[kProtected] == 0) return kProbation;
  if (num_linked_[kProbation] == 0) return kProtected;
  if (rule.from == VictimRule::From::kOldest) {
    // Of two that are equally old, one was stored behind the other, which is protected.
    const std::uint32_t age_difference =
        records_[coldest(kProtected)].stamp - records_[coldest(kProbation)].stamp;
    return static_cast<std::int32_t>(age_difference) < 0 ? kProtected : kProbation;
  }
  const float allowed = rule.probation_share * static_cast<float>(num_slots_);
  return static_cast<float>(num_linked_[kProbation]) > allowed ? kProbation : kProtected;
}

void SlotTable::evict(std::span<SlotId> slots, const VictimRule& rule) {
  KVFERRY_CHECK(slots.size() <= count(SlotState::kEvictable),
                "evicting " + std::to_string(slots.size()) + " slots of " +
                    std::to_string(count(SlotState::kEvictable)));
  for (SlotId& slot : slots) {
    // Before any victim: a request that never came must not keep its blocks for ever.
    if (num_awaited() > 0) {
      const std::uint32_t oldest = coldest(kAwaitedList);
      if (num_evictions_ - records_[oldest].stamp >= num_slots_) end_waiting(oldest);
    }
    slot = SlotId(coldest(victim_list(rule)));
    unlink(expect(slot, SlotState::kEvictable));
    clear_readable(slot);
    push_free(slot);
    ++num_evictions_;
  }
  recount(SlotState::kEvictable, SlotState::kFree, slots.size());
}

void SlotTable::free(std::span<const SlotId> slots, SlotState from) {
  for (std::size_t i = slots.size(); i-- > 0;) {
    expect(slots[i], from);
    push_free(slots[i]);
  }
  recount(from, SlotState::kFree, slots.size());
}

void SlotTable::commit(std::span<const SlotId> slots, std::optional<SlotId> predecessor) {
  // By segment: the record that the next slot is linked behind.
  std::array<std::uint32_t, kNumSegments> warmer{sentinel(0), sentinel(1)};
  std::uint32_t stamp = ++clock_;
  if (predecessor && state(*predecessor) == SlotState::kEvictable) {
    const Record& before = at(*predecessor);
    if (!before.awaited) {
      warmer[static_cast<std::size_t>(before.segment)] = predecessor->value();
      stamp = before.stamp;
    }
  }
  for (const SlotId slot : slots) {
    Record& record = expect(slot, SlotState::kWritable);
    record.state = SlotState::kEvictable;
    set_readable(slot);
    record.stamp = stamp;
    std::uint32_t& place = warmer[static_cast<std::size_t>(record.segment)];
    link_colder_than(place, slot);
    place = slot.value();
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
    const SlotId slot = slots[num_done];
    Record& record = at(slot);
    if (record.state != SlotState::kLeased) {
      if (record.state == SlotState::kAbsent) break;
      unlink(expect(slot, SlotState::kEvictable));
      record.state = SlotState::kLeased;
      ++num_first_leases;
    }
    KVFERRY_CHECK(record.num_users < kMaxUsers, "a slot has too many leases");
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
    const SlotId slot = slots[left - 1];
    Record& record = at(slot);
    if (record.state != SlotState::kLeased && record.state != SlotState::kDying) {
      if (record.state == SlotState::kAbsent) break;
      expect(slot, SlotState::kLeased);
    }
    if (--record.num_users != 0) continue;
    if (record.state == SlotState::kDying) {
      push_free(slot);
      ++num_freed;
    } else {
      record.state = SlotState::kEvictable;
      if (segments_ == Segments::kTwo) record.segment = Segment::kProtected;
      link_hottest(slot);
      ++num_evictable;
    }
  }
  recount(SlotState::kLeased, SlotState::kEvictable, num_evictable);
  recount(SlotState::kDying, SlotState::kFree, num_freed);
  return slots.size() - left;
}

void SlotTable::touch(SlotId slot) {
  Record& record = at(slot);
  if (record.state == SlotState::kLeased) {
    heat_up(record);
    return;
  }
  unlink(expect(slot, SlotState::kEvictable));
  heat_up(record);
  link_hottest(slot);
}

void SlotTable::await(SlotId slot, std::uint32_t max_awaited) {
  if (max_awaited == 0) return;
  Record& record = expect(slot, SlotState::kEvictable);
  const std::uint32_t num_waiting = record.num_users;
  unlink(record);
  record.awaited = true;
  record.num_users = std::min(num_waiting + 1, kMaxUsers);
  link_hottest(slot);
  if (num_awaited() > max_awaited) end_waiting(coldest(kAwaitedList));
}

void SlotTable::end_await(SlotId slot) {
  Record& record = expect(slot, SlotState::kEvictable);
  if (record.awaited && --record.num_users == 0) end_waiting(slot.value());
}

void SlotTable::end_waiting(std::uint32_t slot) {
  unlink(records_[slot]);
  link_hottest(SlotId(slot));
}

SlotId SlotTable::first_victim() const {
  const VictimRule probation_first{VictimRule::From::kProbationAbove, 0};
  const std::uint32_t list = victim_list(probation_first);
  return list == kAwaitedList ? kNoVictim : SlotId(coldest(list));
}

SlotId SlotTable::next_victim(SlotId victim) const {
  std::uint32_t next = records_[victim.value()].hotter;
  if (next == sentinel(0)) next = coldest(1);
  return victim_or_none(next);
}

void SlotTable::spare(SlotId slot) {
  Record& record = expect(slot, SlotState::kEvictable);
  KVFERRY_CHECK(record.heat > 0 && !record.awaited, "a slot was spared that is not hot");
  --record.heat;
  unlink(record);
  link_hottest(slot);
}

void SlotTable::forget(SlotId slot) {
  Record& record = at(slot);
  if (record.state == SlotState::kLeased) {
    record.state = SlotState::kDying;
    clear_readable(slot);
    recount(SlotState::kLeased, SlotState::kDying, 1);
    return;
  }
  unlink(expect(slot, SlotState::kEvictable));
  clear_readable(slot);
  push_free(slot);
  recount(SlotState::kEvictable, SlotState::kFree, 1);
}

void SlotTable::make_evictable(SlotId slot) {
  expect(slot, SlotState::kFree).state = SlotState::kEvictable;
  unlink_free(slot.value());
  set_readable(slot);
  link_hottest(slot);
  recount(SlotState::kFree, SlotState::kEvictable, 1);
}

void SlotTable::set_aside(SlotId slot) {
  expect(slot, SlotState::kFree).state = SlotState::kQuarantined;
  unlink_free(slot.value());
  recount(SlotState::kFree, SlotState::kQuarantined, 1);
}

}  // namespace kvferry::cpu_tier
