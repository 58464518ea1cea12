// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/ids.hpp"
#include "kvferry/cpu_tier/memory/huge_page_allocator.hpp"
#include "kvferry/cpu_tier/policy/eviction_policy.hpp"
#include "kvferry/cpu_tier/policy/policy_rule.hpp"
#include "kvferry/cpu_tier/slots/slot_lists.hpp"
#include "kvferry/cpu_tier/slots/slot_range.hpp"
#include "kvferry/cpu_tier/slots/slot_record.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace kvferry::cpu_tier {

/// How many recency lists there are.
enum class Segments : std::uint8_t {
  kOne,  ///< Everything stays on probation: plain LRU.
  kTwo
};

/// State, leases, recency and heat of every slot. Evictable and free slots are on one of the
/// SlotLists, all others on none. A slot is *named* if it is neither absent nor free nor evictable:
/// a transfer, a lease or a quarantine has it. Every transition checks the slot's state; a wrong
/// state is a broken invariant. Sets are prefixes in order: their tails become colder than their
/// heads, and when they are freed, they are taken again in order.
///
/// Whatever the policy decides, victims are always evictable slots, and as long as there is an
/// evictable slot there is a victim.
///
/// One thread at a time. Nothing throws but construction.
class SlotTable {
 public:
  /// Has room for `max_slots`; no slot is usable yet.
  explicit SlotTable(std::uint32_t max_slots, Segments segments = Segments::kOne);

  /// absent -> free, to be taken next, in ascending order.
  void add(SlotRange range);
  /// free -> absent.
  void remove(SlotRange range);

  /// free -> writable: fills `slots`; at least that many are free. `placements[i]` is the placement
  /// of slots[i] when it is committed; without placements: on probation, heat 1.
  void take(std::span<SlotId> slots, std::span<const Placement> placements = {});
  /// evictable -> free, by choose_victim(), one after the other. Slots that stay are only taken
  /// when there are no others, and awaited slots after those. At least as many slots are evictable.
  /// The freed slots are taken next, the last one first, so slots of one prefix are taken in
  /// ascending order again.
  void evict(std::span<SlotId> slots, const VictimRule& rule = {});
  /// `from` (writable, aborted or quarantined) -> free.
  void free(std::span<const SlotId> slots, SlotState from);
  /// writable -> evictable. Each slot becomes the next colder one after the slot before it in its
  /// segment. The first slot becomes the next colder one after `predecessor`, if that is given and
  /// evictable, otherwise the most recent of all. (If the first slot is in the other segment, it
  /// gets the age of `predecessor`, and leaves before it.)
  void commit(std::span<const SlotId> slots, std::optional<SlotId> predecessor = std::nullopt);
  /// writable -> aborted.
  void abort(std::span<const SlotId> slots);
  /// aborted -> quarantined.
  void quarantine(std::span<const SlotId> slots);
  /// Adds one lease to each slot, from the first on, up to one that is absent. The others are
  /// readable. Returns how many.
  [[nodiscard]] std::size_t lease(std::span<const SlotId> slots);
  /// Removes one lease from each slot, from the last on, down to one that is absent. When the last
  /// lease of a slot ends: leased -> evictable, most recent; dying -> free. Returns how many.
  [[nodiscard]] std::size_t end_leases(std::span<const SlotId> slots);
  /// Makes a readable slot the most recent, hotter, and protected. A leased slot only becomes
  /// hotter, because it becomes the most recent when its lease ends.
  void touch(SlotId slot);
  /// Puts an evictable slot after all others in the order of eviction, until it is leased or
  /// touched. At most `max_awaited` slots are kept like this, and none for longer than
  /// `num_slots()` evictions: beyond that, the slot that has been awaited for longest becomes the
  /// most recent of its segment instead. The requests that wait are counted.
  void await(SlotId slot, std::uint32_t max_awaited);
  /// One request less waits for an evictable slot. After the last one, the slot becomes the most
  /// recent of its segment. Does nothing if no request waits.
  void end_await(SlotId slot);

  /// Promises a readable slot at a depth (1 to PromiseLedger::kMaxDepth), or ends its promise (0):
  /// a slot that stays then leaves next. Or, with SlotRecord::kLeavesEarly, makes an evictable slot
  /// that is neither promised nor awaited leave before all others, until it is leased or touched.
  void promise(SlotId slot, std::uint8_t promise);
  /// The slot that leaves next by the rule; at least one is evictable. Promised slots before it
  /// whose turn has come stay from now on, as many as the rule allows; when there are more, the
  /// deepest of them leave.
  [[nodiscard]] SlotId choose_victim(const VictimRule& rule);

  /// The slot whose turn to leave it is by the segments; kNoSlot if they are empty.
  [[nodiscard]] SlotId turn(const VictimRule& rule) const;
  /// Whether an evictable slot was used as often as something else was offered, at least once. Then
  /// it is counted down, and stays in its place.
  [[nodiscard]] bool withstands(SlotId slot, std::uint32_t num_offers);
  /// evictable -> free, leased -> dying.
  void forget(SlotId slot);
  /// free -> evictable, the most recent: the slot turned out to hold a block.
  void make_evictable(SlotId slot);
  /// free -> quarantined: a peer or a device still uses it.
  void set_aside(SlotId slot);

  [[nodiscard]] SlotState state(SlotId slot) const { return lists_[slot].state; }
  /// Evictable or leased.
  [[nodiscard]] bool readable(SlotId slot) const {
    return (readable_[slot.value() / kBitsPerWord] >> (slot.value() % kBitsPerWord) & 1) != 0;
  }
  [[nodiscard]] std::uint32_t count(SlotState state) const {
    return counts_[static_cast<std::size_t>(state)];
  }
  [[nodiscard]] std::uint32_t num_slots() const { return num_slots_; }
  [[nodiscard]] Segment segment(SlotId slot) const { return lists_[slot].segment; }
  [[nodiscard]] std::uint32_t num_awaited() const { return lists_.num_awaited(); }
  /// One past the highest slot that was ever added. Slots from it on have always been absent.
  [[nodiscard]] std::uint32_t end() const { return end_; }
  [[nodiscard]] bool any_named(SlotRange range) const;
  /// The order in which slots leave and are taken.
  [[nodiscard]] const SlotLists& lists() const { return lists_; }

  /// Compares all slots and lists with the counts. For tests.
  void check_invariants() const;

 private:
  static constexpr std::uint32_t kBitsPerWord = 64;

  SlotRecord& at(SlotId slot) {
    if (slot.value() >= lists_.max_slots()) fail(slot);
    return lists_[slot];
  }
  SlotRecord& expect(SlotId slot, SlotState state) {
    SlotRecord& record = at(slot);
    if (record.state != state) fail(slot, state);
    return record;
  }
  /// There is no such slot.
  [[noreturn]] void fail(SlotId slot) const;
  /// It is not in that state.
  [[noreturn]] void fail(SlotId slot, SlotState expected) const;
  /// Updates the counts once per batch: counting each slot would cost as much as moving it.
  void recount(SlotState from, SlotState to, std::size_t num_moved);
  void set_free(SlotId slot);
  void set_readable(SlotId slot) {
    readable_[slot.value() / kBitsPerWord] |= std::uint64_t{1} << slot.value() % kBitsPerWord;
  }
  void clear_readable(SlotId slot) {
    readable_[slot.value() / kBitsPerWord] &= ~(std::uint64_t{1} << slot.value() % kBitsPerWord);
  }
  void heat_up(SlotRecord& record);
  /// Ends the wait for a slot: it becomes the most recent of its segment.
  void end_waiting(SlotId slot);
  void stay(SlotId slot);

  SlotLists lists_;
  /// One bit per slot, redundant: lookups need nothing else, and the bits of half a million slots
  /// stay in a core's own cache, while their records would not.
  std::vector<std::uint64_t, HugePageAllocator<std::uint64_t>> readable_;
  std::array<std::uint32_t, kNumSlotStates> counts_{};
  Segments segments_;
  std::uint32_t num_slots_ = 0;
  std::uint32_t end_ = 0;
};

}  // namespace kvferry::cpu_tier
