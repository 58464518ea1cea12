// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/ids.hpp"
#include "kvferry/base/prefetch.hpp"
#include "kvferry/cpu_tier/memory/huge_page_allocator.hpp"
#include "kvferry/cpu_tier/policy/policy_rule.hpp"
#include "kvferry/cpu_tier/policy/promise_ledger.hpp"
#include "kvferry/cpu_tier/slots/slot_record.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvferry::cpu_tier {

/// The order in which slots are evicted and taken: the records of all slots, linked into intrusive
/// lists. An evictable slot is on exactly one list: that of the slots for which queued requests
/// wait, one of those that stay or leave early because of clients' hints, or that of its segment.
/// Each list is ordered by recency. Free slots are on a stack. SlotTable decides which slot belongs
/// on which list, and gives other code only the const functions.
///
/// One thread at a time. Nothing throws but construction.
class SlotLists {
 public:
  /// The result of a query if there is no such slot.
  static constexpr SlotId kNoSlot{0xffffffff};

  /// Records for `max_slots`, on no list.
  explicit SlotLists(std::uint32_t max_slots);

  [[nodiscard]] std::uint32_t max_slots() const { return max_slots_; }
  [[nodiscard]] SlotRecord& operator[](SlotId slot) { return records_[slot.value()]; }
  [[nodiscard]] const SlotRecord& operator[](SlotId slot) const { return records_[slot.value()]; }

  /// Fetches a slot's record early, to change it. The slot need not exist.
  void prefetch(SlotId slot) const { prefetch_to_write(records_.data() + slot.value()); }

  // ---- free slots ----

  void push_free(SlotId slot);
  void unlink_free(SlotId slot);
  /// The slot that is taken next, and the one that has been free for longest.
  [[nodiscard]] SlotId top_free() const { return slot_or_none(records_[sentinel(kFree)].hotter); }
  [[nodiscard]] SlotId longest_free() const {
    return slot_or_none(records_[sentinel(kFree)].colder);
  }

  // ---- evictable slots ----

  /// Makes the slot the hottest of the list that its record names.
  void link_hottest(SlotId slot);
  /// Makes the slot the next colder neighbour of `warmer`, which is on the list of the slot's
  /// segment or is its above_hottest(). Nothing is known of the slot yet: it is neither awaited nor
  /// promised. The caller sets the stamp.
  void link_colder_than(SlotId warmer, SlotId slot) {
    SlotRecord& record = records_[slot.value()];
    link(record, warmer, slot, static_cast<std::uint32_t>(record.segment));
  }
  /// The slot is no longer awaited, and neither stays nor leaves early.
  void unlink(SlotRecord& record);
  [[nodiscard]] SlotId above_hottest(Segment segment) const {
    return SlotId(sentinel(static_cast<std::uint32_t>(segment)));
  }
  /// A new stamp, for slots that become the most recent together.
  [[nodiscard]] std::uint32_t next_stamp() { return ++clock_; }
  void count_eviction() { ++num_evictions_; }
  void count_turn() { ++num_turns_; }
  /// How many times the turn to leave came to an evictable slot, whether the slot left or stayed.
  /// Wraps.
  [[nodiscard]] std::uint32_t num_turns() const { return num_turns_; }
  /// Whether the slot stays, and would have left by now if no slots stayed: the turn of each slot
  /// comes as many turns earlier as there are slots that stay.
  [[nodiscard]] bool is_owed_to_stay(SlotId slot) const {
    const SlotRecord& record = records_[slot.value()];
    return record.stays && (record.awaited || num_turns_ - record.stamp > num_stays_);
  }

  /// Evictable slots of the segment's list.
  [[nodiscard]] std::uint32_t num_linked(Segment segment) const {
    return num_linked_[static_cast<std::size_t>(segment)];
  }
  /// Whether the evictable slot is on the list of its segment.
  [[nodiscard]] bool is_in_turn(const SlotRecord& record) const {
    return list_of(record) < kAwaited;
  }
  [[nodiscard]] std::uint32_t num_awaited() const { return num_linked_[kAwaited]; }
  /// The coldest evictable slot of the segment's list.
  [[nodiscard]] SlotId coldest_of(Segment segment) const {
    return slot_or_none(coldest(static_cast<std::uint32_t>(segment)));
  }
  /// The next hotter slot after such a slot.
  [[nodiscard]] SlotId hotter_than(SlotId slot) const {
    return slot_or_none(records_[slot.value()].hotter);
  }
  /// The slot that has been awaited for longest.
  [[nodiscard]] SlotId longest_awaited() const { return slot_or_none(coldest(kAwaited)); }
  /// How many slots were evicted since the arrival of the request that waits for an awaited slot.
  [[nodiscard]] std::uint32_t evictions_awaited(SlotId slot) const {
    return num_evictions_ - records_[slot.value()].stamp;
  }
  /// Slots whose turn to leave had come, and which stayed; awaited ones among them.
  [[nodiscard]] std::uint32_t num_stays() const { return num_stays_; }
  [[nodiscard]] std::uint32_t num_leaving_early() const { return num_linked_[kEarly]; }
  /// The slot that leaves before all others: because of a hint, or because its promise ended while
  /// it stayed; kNoSlot if there is none.
  [[nodiscard]] SlotId first_to_leave() const {
    const SlotId early = slot_or_none(coldest(kEarly));
    return early != kNoSlot ? early : slot_or_none(coldest(kOverdue));
  }
  /// The slot that is given up first among those that stay; kNoSlot if there is none.
  [[nodiscard]] SlotId deepest_stay() const;
  /// How many slots have become the most recent since the evictable slot `slot` did (a set that is
  /// committed counts as one); 0 for a slot that is awaited or stays.
  [[nodiscard]] std::uint32_t age(SlotId slot) const;
  /// The counter behind age(). Wraps.
  [[nodiscard]] std::uint32_t clock() const { return clock_; }

  /// Checks all lists: each is intact and has only slots of the right state; `num_free` slots are
  /// on the stack and `num_evictable` on the other lists. For tests.
  void check_invariants(std::uint32_t num_free, std::uint32_t num_evictable) const;

 private:
  // The lists of evictable slots: first those by Segment, then that of the awaited slots, those of
  // the slots that stay, by depth, and that of the slots that leave early. The free stack is last.
  static constexpr std::uint32_t kAwaited = kNumSegments;
  /// Slots that stay and are no longer promised. The lists by depth follow; depth begins with 1.
  static constexpr std::uint32_t kOverdue = kAwaited + 1;
  static constexpr std::uint32_t kEarly = kOverdue + PromiseLedger::kMaxDepth + 1;
  static constexpr std::uint32_t kNumLists = kEarly + 1;
  static constexpr std::uint32_t kFree = kNumLists;
  static constexpr std::uint32_t kNumRings = kFree + 1;

  [[nodiscard]] static std::uint32_t list_of(const SlotRecord& record) {
    if (record.awaited) return kAwaited;
    if (record.stays) return kOverdue + record.promise;
    if (record.promise == SlotRecord::kLeavesEarly) return kEarly;
    return static_cast<std::uint32_t>(record.segment);
  }
  [[nodiscard]] std::uint32_t sentinel(std::uint32_t ring) const { return max_slots_ + ring; }
  [[nodiscard]] std::uint32_t coldest(std::uint32_t list) const {
    return records_[sentinel(list)].hotter;
  }
  [[nodiscard]] SlotId slot_or_none(std::uint32_t record) const {
    return record >= max_slots_ ? kNoSlot : SlotId(record);
  }
  /// `record` is that of the slot.
  void link(SlotRecord& record, SlotId warmer, SlotId slot, std::uint32_t list);
  void check_list(std::uint32_t list) const;
  void check_stays() const;

  /// From [max_slots] on these are the sentinels of the rings: `hotter` of a sentinel is the
  /// coldest slot of its list, `colder` is the hottest. For the free stack, `hotter` is the top.
  std::vector<SlotRecord, HugePageAllocator<SlotRecord>> records_;
  std::array<std::uint32_t, kNumLists> num_linked_{};
  std::uint32_t max_slots_;
  /// Both wrap. Times are compared by their difference, so a slot that lies for 2 billion ticks can
  /// only lose its place to another slot. Awaited slots are stamped with num_evictions_, and those
  /// that stay with num_turns_.
  std::uint32_t clock_ = 0;
  std::uint32_t num_evictions_ = 0;
  std::uint32_t num_turns_ = 0;
  std::uint32_t num_stays_ = 0;
};

// Inline, because every transition of a slot calls some of them.

inline void SlotLists::push_free(SlotId slot) {
  SlotRecord& record = records_[slot.value()];
  record.hotter = records_[sentinel(kFree)].hotter;
  record.colder = sentinel(kFree);
  records_[record.hotter].colder = slot.value();
  records_[record.colder].hotter = slot.value();
}

inline void SlotLists::unlink_free(SlotId slot) {
  const SlotRecord& record = records_[slot.value()];
  records_[record.colder].hotter = record.hotter;
  records_[record.hotter].colder = record.colder;
}

inline void SlotLists::link_hottest(SlotId slot) {
  SlotRecord& record = records_[slot.value()];
  const std::uint32_t list = list_of(record);
  if (list < kAwaited) record.stamp = ++clock_;
  if (list == kAwaited) record.stamp = num_evictions_;
  if (list > kAwaited && record.stays) record.stamp = num_turns_;
  link(record, SlotId(sentinel(list)), slot, list);
}

inline void SlotLists::link(SlotRecord& record, SlotId warmer, SlotId slot, std::uint32_t list) {
  record.colder = records_[warmer.value()].colder;
  record.hotter = warmer.value();
  records_[record.colder].hotter = slot.value();
  records_[warmer.value()].colder = slot.value();
  ++num_linked_[list];
  num_stays_ += record.stays ? 1 : 0;
}

inline void SlotLists::unlink(SlotRecord& record) {
  records_[record.colder].hotter = record.hotter;
  records_[record.hotter].colder = record.colder;
  --num_linked_[list_of(record)];
  num_stays_ -= record.stays ? 1 : 0;
  record.awaited = false;
  record.stays = false;
  record.num_users = 0;
  if (record.promise == SlotRecord::kLeavesEarly) record.promise = 0;
}

inline std::uint32_t SlotLists::age(SlotId slot) const {
  const SlotRecord& record = records_[slot.value()];
  return record.awaited || record.stays ? 0 : clock_ - record.stamp;
}

}  // namespace kvferry::cpu_tier
