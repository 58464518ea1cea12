// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/slot_ledger.hpp"

#include "kvferry/base/check.hpp"

#include <string>

namespace kvferry::cpu_tier {

const char* to_string(SlotState state) {
  switch (state) {
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

SlotLedger::SlotLedger(std::uint32_t max_slots)
    : records_(std::size_t{max_slots} + 1), sentinel_(max_slots), free_top_(max_slots) {
  records_[sentinel_].colder = sentinel_;
  records_[sentinel_].hotter = sentinel_;
}

SlotLedger::Record& SlotLedger::at(SlotId slot) {
  KVFERRY_CHECK(slot.value() < num_slots_,
                "slot " + std::to_string(slot.value()) + " of " + std::to_string(num_slots_));
  return records_[slot.value()];
}

SlotLedger::Record& SlotLedger::expect(SlotId slot, SlotState state) {
  Record& record = at(slot);
  KVFERRY_CHECK(record.state == state, "slot " + std::to_string(slot.value()) + " is " +
                                           to_string(record.state) + ", not " + to_string(state));
  return record;
}

void SlotLedger::recount(SlotState from, SlotState to, std::size_t num_moved) {
  counts_[static_cast<std::size_t>(from)] -= static_cast<std::uint32_t>(num_moved);
  counts_[static_cast<std::size_t>(to)] += static_cast<std::uint32_t>(num_moved);
}

void SlotLedger::push_free(SlotId slot) {
  records_[slot.value()].state = SlotState::kFree;
  records_[slot.value()].hotter = free_top_;
  free_top_ = slot.value();
}

void SlotLedger::link_colder_than(std::uint32_t warmer, SlotId slot) {
  Record& record = records_[slot.value()];
  record.colder = records_[warmer].colder;
  record.hotter = warmer;
  records_[record.colder].hotter = slot.value();
  records_[warmer].colder = slot.value();
}

void SlotLedger::unlink(const Record& record) {
  records_[record.colder].hotter = record.hotter;
  records_[record.hotter].colder = record.colder;
}

void SlotLedger::grow_to(std::uint32_t num_slots) {
  KVFERRY_CHECK(num_slots >= num_slots_ && num_slots <= sentinel_,
                "grow_to(" + std::to_string(num_slots) + ") of a tier of " +
                    std::to_string(num_slots_) + " slots, at most " + std::to_string(sentinel_));
  for (std::uint32_t slot = num_slots; slot > num_slots_; --slot) push_free(SlotId(slot - 1));
  counts_[static_cast<std::size_t>(SlotState::kFree)] += num_slots - num_slots_;
  num_slots_ = num_slots;
}

void SlotLedger::take(std::span<SlotId> slots) {
  for (SlotId& slot : slots) {
    slot = SlotId(free_top_);
    Record& record = expect(slot, SlotState::kFree);
    free_top_ = record.hotter;
    record.state = SlotState::kWritable;
  }
  recount(SlotState::kFree, SlotState::kWritable, slots.size());
}

void SlotLedger::evict_coldest(std::span<SlotId> slots) {
  for (SlotId& slot : slots) {
    slot = SlotId(records_[sentinel_].hotter);
    unlink(expect(slot, SlotState::kEvictable));
    push_free(slot);
  }
  recount(SlotState::kEvictable, SlotState::kFree, slots.size());
}

void SlotLedger::free(std::span<const SlotId> slots, SlotState from) {
  for (std::size_t i = slots.size(); i-- > 0;) {
    expect(slots[i], from);
    push_free(slots[i]);
  }
  recount(from, SlotState::kFree, slots.size());
}

void SlotLedger::commit(std::span<const SlotId> slots, std::optional<SlotId> predecessor) {
  std::uint32_t warmer = sentinel_;
  if (predecessor && state(*predecessor) == SlotState::kEvictable) warmer = predecessor->value();
  for (const SlotId slot : slots) {
    expect(slot, SlotState::kWritable).state = SlotState::kEvictable;
    link_colder_than(warmer, slot);
    warmer = slot.value();
  }
  recount(SlotState::kWritable, SlotState::kEvictable, slots.size());
}

void SlotLedger::abort(std::span<const SlotId> slots) {
  for (const SlotId slot : slots) expect(slot, SlotState::kWritable).state = SlotState::kAborted;
  recount(SlotState::kWritable, SlotState::kAborted, slots.size());
}

void SlotLedger::quarantine(std::span<const SlotId> slots) {
  for (const SlotId slot : slots) expect(slot, SlotState::kAborted).state = SlotState::kQuarantined;
  recount(SlotState::kAborted, SlotState::kQuarantined, slots.size());
}

void SlotLedger::lease(std::span<const SlotId> slots) {
  std::size_t num_first_leases = 0;
  for (const SlotId slot : slots) {
    Record& record = at(slot);
    if (record.state != SlotState::kLeased) {
      unlink(expect(slot, SlotState::kEvictable));
      record.state = SlotState::kLeased;
      ++num_first_leases;
    }
    ++record.num_leases;
  }
  recount(SlotState::kEvictable, SlotState::kLeased, num_first_leases);
}

void SlotLedger::end_leases(std::span<const SlotId> slots) {
  std::size_t num_evictable = 0;
  std::size_t num_freed = 0;
  for (std::size_t i = slots.size(); i-- > 0;) {
    Record& record = at(slots[i]);
    const bool dying = record.state == SlotState::kDying;
    if (!dying) expect(slots[i], SlotState::kLeased);
    if (--record.num_leases != 0) continue;
    if (dying) {
      push_free(slots[i]);
      ++num_freed;
    } else {
      record.state = SlotState::kEvictable;
      link_hottest(slots[i]);
      ++num_evictable;
    }
  }
  recount(SlotState::kLeased, SlotState::kEvictable, num_evictable);
  recount(SlotState::kDying, SlotState::kFree, num_freed);
}

void SlotLedger::touch(SlotId slot) {
  if (at(slot).state == SlotState::kLeased) return;
  unlink(expect(slot, SlotState::kEvictable));
  link_hottest(slot);
}

void SlotLedger::forget(SlotId slot) {
  Record& record = at(slot);
  if (record.state == SlotState::kLeased) {
    record.state = SlotState::kDying;
    recount(SlotState::kLeased, SlotState::kDying, 1);
    return;
  }
  unlink(expect(slot, SlotState::kEvictable));
  push_free(slot);
  recount(SlotState::kEvictable, SlotState::kFree, 1);
}

void SlotLedger::check_invariants() const {
  std::array<std::uint32_t, kNumSlotStates> counted{};
  for (std::uint32_t slot = 0; slot < num_slots_; ++slot) {
    const Record& record = records_[slot];
    ++counted[static_cast<std::size_t>(record.state)];
    const bool holds_lease =
        record.state == SlotState::kLeased || record.state == SlotState::kDying;
    KVFERRY_CHECK(holds_lease == (record.num_leases != 0),
                  "slot " + std::to_string(slot) + " is " + to_string(record.state) + " with " +
                      std::to_string(record.num_leases) + " leases");
  }
  KVFERRY_CHECK(counted == counts_, "the counts differ from the slots' states");

  // A list with a foreign slot, a cycle or a gap has another length than its state has slots.
  std::uint32_t num_linked = 0;
  for (std::uint32_t slot = records_[sentinel_].hotter; slot != sentinel_;
       slot = records_[slot].hotter) {
    KVFERRY_CHECK(records_[slot].state == SlotState::kEvictable &&
                      records_[records_[slot].hotter].colder == slot &&
                      ++num_linked <= count(SlotState::kEvictable),
                  "the LRU list is broken at slot " + std::to_string(slot));
  }
  KVFERRY_CHECK(num_linked == count(SlotState::kEvictable), "an evictable slot is not listed");

  std::uint32_t num_stacked = 0;
  for (std::uint32_t slot = free_top_; slot != sentinel_; slot = records_[slot].hotter) {
    KVFERRY_CHECK(
        records_[slot].state == SlotState::kFree && ++num_stacked <= count(SlotState::kFree),
        "the free stack is broken at slot " + std::to_string(slot));
  }
  KVFERRY_CHECK(num_stacked == count(SlotState::kFree), "a free slot is not on the stack");
}

}  // namespace kvferry::cpu_tier
