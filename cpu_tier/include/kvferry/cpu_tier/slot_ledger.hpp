// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/ids.hpp"
#include "kvferry/cpu_tier/huge_page_allocator.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace kvferry::cpu_tier {

/// The states of cpu_tier.hpp; readable is kEvictable (no lease) or kLeased.
enum class SlotState : std::uint8_t {
  kFree,
  kWritable,
  kAborted,
  kEvictable,
  kLeased,
  kDying,
  kQuarantined
};
inline constexpr std::size_t kNumSlotStates = 7;
[[nodiscard]] const char* to_string(SlotState state);

/// State, leases and recency of every slot. Evictable slots are on an intrusive LRU list, free ones
/// on an intrusive stack; all others on none. Every transition checks the state it starts from;
/// another one is a broken invariant. Sets are prefixes in order: their tails become colder than
/// their heads, and freed they are taken again in order.
///
/// One thread at a time. Nothing throws but construction.
class SlotLedger {
 public:
  /// Room for `max_slots`; none usable yet.
  explicit SlotLedger(std::uint32_t max_slots);

  /// Makes slots [0, num_slots) usable; the new ones are taken next, in ascending order.
  void grow_to(std::uint32_t num_slots);

  /// free -> writable: fills `slots`; at least as many are free.
  void take(std::span<SlotId> slots);
  /// evictable -> free: the coldest, coldest first; at least as many are evictable. They are taken
  /// next, warmest first: those of one prefix in ascending order again.
  void evict_coldest(std::span<SlotId> slots);
  /// `from` (writable, aborted or quarantined) -> free.
  void free(std::span<const SlotId> slots, SlotState from);
  /// writable -> evictable, each the next colder one of the slot before it; the first the next
  /// colder one of `predecessor` if that is given and evictable, else the most recent of all.
  void commit(std::span<const SlotId> slots, std::optional<SlotId> predecessor = std::nullopt);
  /// writable -> aborted.
  void abort(std::span<const SlotId> slots);
  /// aborted -> quarantined.
  void quarantine(std::span<const SlotId> slots);
  /// One more lease on each; each readable.
  void lease(std::span<const SlotId> slots);
  /// One lease less on each. The last one: leased -> evictable, most recent; dying -> free.
  void end_leases(std::span<const SlotId> slots);
  /// Makes a readable slot the most recent; nothing to do for a leased one.
  void touch(SlotId slot);
  /// evictable -> free, leased -> dying.
  void forget(SlotId slot);

  [[nodiscard]] SlotState state(SlotId slot) const { return records_[slot.value()].state; }
  [[nodiscard]] bool readable(SlotId slot) const {
    return state(slot) == SlotState::kEvictable || state(slot) == SlotState::kLeased;
  }
  [[nodiscard]] std::uint32_t count(SlotState state) const {
    return counts_[static_cast<std::size_t>(state)];
  }
  [[nodiscard]] std::uint32_t num_slots() const { return num_slots_; }

  /// Walks all slots and both lists and compares with the counts. For tests.
  void check_invariants() const;

 private:
  /// `colder` and `hotter` link the LRU list; `hotter` alone the free stack.
  struct Record {
    std::uint32_t colder = 0;
    std::uint32_t hotter = 0;
    std::uint32_t num_leases = 0;
    SlotState state = SlotState::kFree;
  };
  static_assert(sizeof(Record) == 16);

  Record& at(SlotId slot);
  Record& expect(SlotId slot, SlotState state);
  /// Counts once per batch: counting each slot costs as much as moving it.
  void recount(SlotState from, SlotState to, std::size_t num_moved);
  void push_free(SlotId slot);
  void link_hottest(SlotId slot) { link_colder_than(sentinel_, slot); }
  /// Makes `slot` the next colder neighbour of the record `warmer`.
  void link_colder_than(std::uint32_t warmer, SlotId slot);
  void unlink(const Record& record);

  /// [max_slots] is the sentinel of the LRU ring: hotter of it is the coldest slot, colder of it
  /// the hottest.
  std::vector<Record, HugePageAllocator<Record>> records_;
  std::array<std::uint32_t, kNumSlotStates> counts_{};
  std::uint32_t num_slots_ = 0;
  std::uint32_t sentinel_;
  std::uint32_t free_top_;
};

}  // namespace kvferry::cpu_tier
