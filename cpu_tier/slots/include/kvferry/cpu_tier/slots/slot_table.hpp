// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/ids.hpp"
#include "kvferry/cpu_tier/memory/huge_page_allocator.hpp"
#include "kvferry/cpu_tier/policy/eviction_policy.hpp"
#include "kvferry/cpu_tier/policy/policy_rule.hpp"
#include "kvferry/cpu_tier/slots/slot_range.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace kvferry::cpu_tier {

/// The states of tier.hpp; readable is kEvictable (no lease) or kLeased. An absent slot has no
/// memory: the tier has not grown so far, or the memory is another slab class's.
enum class SlotState : std::uint8_t {
  kAbsent,
  kFree,
  kWritable,
  kAborted,
  kEvictable,
  kLeased,
  kDying,
  kQuarantined
};
inline constexpr std::size_t kNumSlotStates = 8;
[[nodiscard]] const char* to_string(SlotState state);

/// How many lists recency is kept in.
enum class Segments : std::uint8_t {
  kOne,  ///< Everything stays on probation: plain LRU.
  kTwo
};

/// State, leases, recency and heat of every slot. Evictable slots are on an intrusive list: that of
/// the slots that queued requests wait for, or that of their segment, by recency; free ones on an
/// intrusive stack; all others on none. A slot is *named* if it is neither absent nor free nor
/// evictable: a transfer, a lease or a quarantine has it. Every transition checks the state it
/// starts from; another one is a broken invariant. Sets are prefixes in order: their tails become
/// colder than their heads, and freed they are taken again in order.
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
  /// evictable -> free: the coldest of the segment that the rule names, one after the other; those
  /// that are waited for only when there are no others; at least as many are evictable. They are
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

  // ---- a look at the victims to come, by a rule of VictimRule::From::kProbationAbove 0 ----

  /// The slot to be evicted next, not looking at those that are waited for; kNoVictim if there is
  /// none.
  [[nodiscard]] SlotId first_victim() const;
  /// The one after it.
  [[nodiscard]] SlotId next_victim(SlotId victim) const;
  static constexpr SlotId kNoVictim{0xffffffff};
  [[nodiscard]] std::uint32_t heat(SlotId slot) const { return records_[slot.value()].heat; }
  /// Counts an evictable slot of some heat down, and makes it the most recent of its segment.
  void spare(SlotId slot);
  /// evictable -> free, leased -> dying.
  void forget(SlotId slot);
  /// free -> evictable, the most recent: it holds something after all.
  void make_evictable(SlotId slot);
  /// free -> quarantined: a peer or a device has it still.
  void set_aside(SlotId slot);

  [[nodiscard]] SlotState state(SlotId slot) const { return records_[slot.value()].state; }
  /// Evictable or leased.
  [[nodiscard]] bool readable(SlotId slot) const {
    return (readable_[slot.value() / kBitsPerWord] >> (slot.value() % kBitsPerWord) & 1) != 0;
  }
  [[nodiscard]] std::uint32_t count(SlotState state) const {
    return counts_[static_cast<std::size_t>(state)];
  }
  [[nodiscard]] std::uint32_t num_slots() const { return num_slots_; }
  [[nodiscard]] Segment segment(SlotId slot) const { return records_[slot.value()].segment; }
  /// Evictable slots of the segment that no request waits for.
  [[nodiscard]] std::uint32_t num_linked(Segment segment) const {
    return num_linked_[static_cast<std::size_t>(segment)];
  }
  [[nodiscard]] std::uint32_t num_awaited() const { return num_linked_[kAwaitedList]; }

  // ---- where a tier of several slab classes takes memory back ----

  /// All slots below it that are not absent have been added at some time; those from it on never.
  [[nodiscard]] std::uint32_t end() const { return end_; }
  [[nodiscard]] bool any_named(SlotRange range) const;
  /// The slot that is free for longest; kNoVictim if none is.
  [[nodiscard]] SlotId longest_free() const;
  /// The coldest evictable slot of the segment that no request waits for, and the one that is next
  /// hotter than such a slot; kNoVictim if there is none.
  [[nodiscard]] SlotId coldest_of(Segment segment) const;
  [[nodiscard]] SlotId hotter_than(SlotId slot) const;
  /// How many slots have become the most recent since `slot`, an evictable one, did (sets that are
  /// committed count as one); 0 for one that is waited for.
  [[nodiscard]] std::uint32_t age(SlotId slot) const;
  /// What age() counts with. Wraps.
  [[nodiscard]] std::uint32_t clock() const { return clock_; }

  /// Walks all slots and both lists and compares with the counts. For tests.
  void check_invariants() const;

 private:
  static constexpr std::uint32_t kBitsPerWord = 64;
  static constexpr std::uint32_t kMaxUsers = (1U << 24) - 1;

  /// `colder` and `hotter` link a list of evictable slots; in the free stack, what lies above and
  /// below.
  struct Record {
    std::uint32_t colder = 0;
    std::uint32_t hotter = 0;
    /// When it became the most recent (clock_); of one that is waited for, num_evictions_ then.
    std::uint32_t stamp = 0;
    /// Leases; of one that is waited for, the requests that wait.
    std::uint32_t num_users : 24 = 0;
    SlotState state : 3 = SlotState::kAbsent;
    Segment segment : 1 = Segment::kProbation;
    bool awaited : 1 = false;
    std::uint8_t heat : 3 = 0;
  };
  static_assert(sizeof(Record) == 16);
  static constexpr std::uint32_t kAwaitedList = kNumSegments;
  static constexpr std::uint32_t kNumLists = kNumSegments + 1;
  static constexpr std::uint32_t kFreeRing = kNumLists;
  static constexpr std::uint32_t kNumRings = kNumLists + 1;

  Record& at(SlotId slot);
  Record& expect(SlotId slot, SlotState state);
  /// Counts once per batch: counting each slot costs as much as moving it.
  void recount(SlotState from, SlotState to, std::size_t num_moved);
  void push_free(SlotId slot);
  void unlink_free(std::uint32_t slot);
  [[nodiscard]] std::uint32_t free_top() const { return records_[sentinel(kFreeRing)].hotter; }
  [[nodiscard]] SlotId victim_or_none(std::uint32_t record) const {
    return record >= max_slots_ ? kNoVictim : SlotId(record);
  }
  void set_readable(SlotId slot) {
    readable_[slot.value() / kBitsPerWord] |= std::uint64_t{1} << slot.value() % kBitsPerWord;
  }
  void clear_readable(SlotId slot) {
    readable_[slot.value() / kBitsPerWord] &= ~(std::uint64_t{1} << slot.value() % kBitsPerWord);
  }
  /// The list that an evictable slot belongs on.
  [[nodiscard]] static std::uint32_t list_of(const Record& record) {
    return record.awaited ? kAwaitedList : static_cast<std::uint32_t>(record.segment);
  }
  [[nodiscard]] std::uint32_t sentinel(std::uint32_t ring) const { return max_slots_ + ring; }
  [[nodiscard]] std::uint32_t coldest(std::uint32_t list) const {
    return records_[sentinel(list)].hotter;
  }
  /// The hottest of its list; the clock's next stamp.
  void link_hottest(SlotId slot);
  /// Makes `slot` the next colder neighbour of the record `warmer` of its own list.
  void link_colder_than(std::uint32_t warmer, SlotId slot);
  void unlink(Record& record);
  void heat_up(Record& record);
  /// No longer waited for: the most recent of its segment.
  void end_waiting(std::uint32_t slot);
  /// The list of the next victim; at least one slot is evictable.
  [[nodiscard]] std::uint32_t victim_list(const VictimRule& rule) const;
  void check_list(std::uint32_t list) const;

  /// From [max_slots] on the sentinels of the rings, by segment, then of the awaited: hotter of one
  /// is its coldest slot, colder of it the hottest. Then that of the free stack: hotter is its top.
  std::vector<Record, HugePageAllocator<Record>> records_;
  /// A bit per slot, again: lookups ask for nothing else, and the bits of half a million slots stay
  /// in a core's own cache, where their records do not.
  std::vector<std::uint64_t, HugePageAllocator<std::uint64_t>> readable_;
  std::array<std::uint32_t, kNumSlotStates> counts_{};
  std::array<std::uint32_t, kNumLists> num_linked_{};
  Segments segments_;
  std::uint32_t num_slots_ = 0;
  std::uint32_t end_ = 0;
  std::uint32_t max_slots_;
  /// Both wrap: times are compared by their difference, and one that has lain for 2 billion of them
  /// is worth another slot's place, no more.
  std::uint32_t clock_ = 0;
  std::uint32_t num_evictions_ = 0;
};

}  // namespace kvferry::cpu_tier
