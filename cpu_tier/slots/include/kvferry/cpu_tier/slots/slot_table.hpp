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

/// How many lists recency is kept in.
enum class Segments : std::uint8_t {
  kOne,  ///< Everything stays on probation: plain LRU.
  kTwo
};

/// State, leases, recency and heat of every slot. Evictable and free slots are on one of the
/// SlotLists, all others on none. A slot is *named* if it is neither absent nor free nor evictable:
/// a transfer, a lease or a quarantine has it. Every transition checks the state it starts from;
/// another one is a broken invariant. Sets are prefixes in order: their tails become colder than
/// their heads, and freed they are taken again in order.
///
/// Whatever the policy says, victims are evictable slots, and while there is one there is a victim.
///
/// One thread at a time. Nothing throws but construction.
class SlotTable {
 public:
  /// Room for `max_slots`; none usable yet.
  explicit SlotTable(std::uint32_t max_slots, Segments segments = Segments::kOne);

  /// absent -> free, to be taken next, in ascending order.
  void add(SlotRange range);
  /// free -> absent.
  void remove(SlotRange range);

  /// free -> writable: fills `slots`; at least as many are free. `placements[i]` is what becomes of
  /// slots[i] when it is committed; none: on probation, heat 1.
  void take(std::span<SlotId> slots, std::span<const Placement> placements = {});
  /// evictable -> free: choose_victim(), one after the other; of those that stay or are waited for
  /// the latter last, when there are no others; at least as many are evictable. They are
  /// taken next, the last one first: those of one prefix in ascending order again.
  void evict(std::span<SlotId> slots, const VictimRule& rule = {});
  /// `from` (writable, aborted or quarantined) -> free.
  void free(std::span<const SlotId> slots, SlotState from);
  /// writable -> evictable, each the next colder one of the slot before it in its segment; the
  /// first the next colder one of `predecessor` if that is given and evictable, else the most
  /// recent of all. (A first slot in the other segment is as old as `predecessor`, and leaves
  /// before it.)
  void commit(std::span<const SlotId> slots, std::optional<SlotId> predecessor = std::nullopt);
  /// writable -> aborted.
  void abort(std::span<const SlotId> slots);
  /// aborted -> quarantined.
  void quarantine(std::span<const SlotId> slots);
  /// One more lease on each, from the first on, up to one that is absent; each readable. Returns
  /// how many.
  [[nodiscard]] std::size_t lease(std::span<const SlotId> slots);
  /// One lease less on each, from the last on, down to one that is absent. The last lease of a
  /// slot: leased -> evictable, most recent; dying -> free. Returns how many.
  [[nodiscard]] std::size_t end_leases(std::span<const SlotId> slots);
  /// Makes a readable slot the most recent, hotter, and protected; a leased one just hotter: it is
  /// the most recent when its lease ends.
  void touch(SlotId slot);
  /// Keeps an evictable slot, until it is leased or touched, after all others in the order of
  /// eviction, but at most `max_awaited` slots, and none for longer than `num_slots()` evictions:
  /// the one that has been waited for longest becomes the most recent of its segment instead.
  /// Requests that wait are counted.
  void await(SlotId slot, std::uint32_t max_awaited);
  /// One request less waits for an evictable slot; after the last one the slot is the most recent
  /// of its segment. Nothing if no request waits.
  void end_await(SlotId slot);

  /// A readable slot is promised from now on, so deep (1 to PromiseLedger::kMaxDepth); or not any
  /// more (0): then one that stays leaves next. Or it is SlotRecord::kLeavesEarly: an evictable one
  /// that is neither promised nor awaited, which leaves before all others until it is leased or
  /// touched.
  void promise(SlotId slot, std::uint8_t promise);
  /// The slot that leaves next by the rule; at least one is evictable. Promised slots before it
  /// whose turn has come stay from now on, as many as the rule lets; the deepest leave for others.
  [[nodiscard]] SlotId choose_victim(const VictimRule& rule);

  /// Counts an evictable slot of some heat down, and makes it the most recent of its segment.
  void spare(SlotId slot);
  /// evictable -> free, leased -> dying.
  void forget(SlotId slot);
  /// free -> evictable, the most recent: it holds something after all.
  void make_evictable(SlotId slot);
  /// free -> quarantined: a peer or a device has it still.
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
  [[nodiscard]] std::uint32_t heat(SlotId slot) const { return lists_[slot].heat; }
  [[nodiscard]] std::uint32_t num_awaited() const { return lists_.num_awaited(); }
  /// All slots below it that are not absent have been added at some time; those from it on never.
  [[nodiscard]] std::uint32_t end() const { return end_; }
  [[nodiscard]] bool any_named(SlotRange range) const;
  /// In which order slots leave and are taken.
  [[nodiscard]] const SlotLists& lists() const { return lists_; }

  /// Walks all slots and lists and compares with the counts. For tests.
  void check_invariants() const;

 private:
  static constexpr std::uint32_t kBitsPerWord = 64;

  SlotRecord& at(SlotId slot);
  SlotRecord& expect(SlotId slot, SlotState state);
  /// Counts once per batch: counting each slot costs as much as moving it.
  void recount(SlotState from, SlotState to, std::size_t num_moved);
  void set_free(SlotId slot);
  void set_readable(SlotId slot) {
    readable_[slot.value() / kBitsPerWord] |= std::uint64_t{1} << slot.value() % kBitsPerWord;
  }
  void clear_readable(SlotId slot) {
    readable_[slot.value() / kBitsPerWord] &= ~(std::uint64_t{1} << slot.value() % kBitsPerWord);
  }
  void heat_up(SlotRecord& record);
  /// No longer waited for: the most recent of its segment.
  void end_waiting(SlotId slot);
  /// The one whose turn it is by the segments; kNoSlot if they are empty.
  [[nodiscard]] SlotId turn(const VictimRule& rule) const;
  void stay(SlotId slot);

  SlotLists lists_;
  /// A bit per slot, again: lookups ask for nothing else, and the bits of half a million slots stay
  /// in a core's own cache, where their records do not.
  std::vector<std::uint64_t, HugePageAllocator<std::uint64_t>> readable_;
  std::array<std::uint32_t, kNumSlotStates> counts_{};
  Segments segments_;
  std::uint32_t num_slots_ = 0;
  std::uint32_t end_ = 0;
};

}  // namespace kvferry::cpu_tier
