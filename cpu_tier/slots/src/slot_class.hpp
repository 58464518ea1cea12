// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/ids.hpp"
#include "kvferry/cpu_tier/policy/eviction_policy.hpp"
#include "kvferry/cpu_tier/policy/tier_options.hpp"
#include "kvferry/cpu_tier/slots/block_index.hpp"
#include "kvferry/cpu_tier/slots/block_key.hpp"
#include "kvferry/cpu_tier/slots/peers.hpp"
#include "kvferry/cpu_tier/slots/slot_range.hpp"
#include "kvferry/cpu_tier/slots/slot_table.hpp"
#include "kvferry/cpu_tier/slots/tier.hpp"
#include "kvferry/cpu_tier/slots/tier_snapshot.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace kvferry::cpu_tier {

/// The slots of one size: table, exact-key index and eviction policy as one object, because every
/// transition touches all three. Tier::SlabClass adds the chunks that the slots are in. Tier's
/// calls say what each of these is for; here slots are given as they are, without the type that
/// says what may be done with them.
///
/// Called under the tier's lock. A slot found in another state than a call expects is a broken
/// invariant. Nothing throws but construction and what finds guests (std::bad_alloc; nothing
/// changed then). In debug builds conservation (G10) is checked in every transition.
class SlotClass {
 public:
  /// For slots [0, max_slots), all absent yet. `peers` outlives this. Throws ConfigError above
  /// BlockIndex::kMaxSlots, and for options out of range.
  SlotClass(std::uint32_t max_slots, const TierOptions& options, Peers& peers,
            const ChunkShape& shape);
  /// Every slot and lease has been given back or left behind.
  ~SlotClass();
  SlotClass(const SlotClass&) = delete;
  SlotClass& operator=(const SlotClass&) = delete;

  // ---- memory that comes and goes (slot_class_chunks.cpp) ----

  /// Makes absent slots usable.
  void add(SlotRange range);
  /// Makes the slots absent again, and evicts the readable ones. False, and they stay, if one is
  /// named (neither free nor evictable) or a peer reads one; some may have been evicted even so.
  [[nodiscard]] bool remove(SlotRange range);
  /// Makes the slots of a chunk usable that was just taken with what is in it. False, and nothing
  /// has changed, if one of them is a guest that is leased.
  [[nodiscard]] bool adopt(SlotRange range);

  // ---- uses that move no block (slot_class_uses.cpp; of promises: slot_promises.hpp) ----

  /// `num_to_come`: slots that are as good as free. `num_ever`: as many as there may come to be.
  void offer(std::span<const BlockKey> keys, std::span<OfferAnswer> answers,
             std::size_t num_to_come, std::size_t num_ever);
  void await(std::span<const BlockKey> keys);
  void await(const PrefixHit& hit);
  void end_await(std::span<const BlockKey> keys);
  void touch(std::span<const BlockKey> keys);

  // ---- stores (slot_class.cpp) ----

  /// Fills `slots`, one for each key; or says why not, and nothing is taken. Slots may have been
  /// evicted even so: whether a peer uses one is known only when it is to leave.
  [[nodiscard]] std::optional<NotReserved> reserve(std::span<const BlockKey> keys,
                                                   std::span<SlotId> slots);
  /// writable -> free: no device has seen the slots.
  void give_back(std::span<const SlotId> slots);
  void commit(std::span<const SlotId> slots, const std::optional<BlockKey>& predecessor);
  void abort(std::span<const SlotId> slots);
  void quarantine(std::span<const SlotId> slots);
  /// `from` (aborted or quarantined) -> free.
  void release(std::span<const SlotId> slots, SlotState from);

  // ---- loads (slot_class_loads.cpp) ----

  [[nodiscard]] PrefixHit lookup_prefix(std::span<const BlockKey> keys, PrefixHit known);
  void lookup(std::span<const BlockKey> keys, std::span<KeyState> states);
  /// Fills `slots`, one for each key, each leased; or says which key cannot be read.
  [[nodiscard]] std::optional<NotReadable> lease(std::span<const BlockKey> keys,
                                                 std::span<SlotId> slots);
  /// Leases the slots of a hit of that epoch.
  [[nodiscard]] std::optional<NotReadable> lease(std::uint64_t eviction_epoch,
                                                 std::span<const SlotId> slots);
  void end_leases(std::span<const SlotId> slots);
  /// The leased slots cease to be readable.
  void forget(std::span<const SlotId> slots);
  void forget_all(std::optional<WeightsId> of);

  // ---- the end, and what is done between steps ----

  /// A device may write the slots (`state` is quarantined), or read them (it is leased), after the
  /// tier has ended.
  void leave_behind(std::span<const SlotId> slots, SlotState state);
  void drop_idle_guests();
  /// Forgets what peers have withdrawn; frees what was set aside and may be free.
  void settle_set_aside();

  [[nodiscard]] const BlockKey& key(SlotId slot) const { return index_.key(slot); }
  [[nodiscard]] std::uint64_t eviction_epoch() const { return eviction_epoch_; }
  [[nodiscard]] const SlotTable& table() const { return table_; }
  [[nodiscard]] std::uint64_t num_evicted_total() const { return num_evicted_total_; }
  [[nodiscard]] std::vector<KeyEvent> take_key_events(WeightsId of);
  [[nodiscard]] TierSnapshot snapshot() const;
  [[nodiscard]] const char* rule_name() const { return policy_.rule().name; }
  void check_invariants() const;

 private:
  friend class SlotPromises;
  friend class TierWithdrawals;
  /// The leased slots cease to be readable, for peers too, and are never free again.
  void withdraw(std::span<const SlotId> slots);
  /// Frees as many slots as `victims` has, none that a peer uses, and fills it with them. Returns
  /// how many there were.
  [[nodiscard]] std::size_t evict(std::span<SlotId> victims);
  /// Evicts one slot after the other, and tells the ledger.
  void evict_in_turn(std::span<SlotId> victims);
  /// What a load of these slots owes to those that stayed: all from the first of them on.
  void count_won(std::span<const SlotId> slots);
  /// The slots hold blocks that may be promised.
  void mark_promised(std::span<const SlotId> slots);
  /// Takes free slots for absent keys and maps these to them.
  void take(std::span<const BlockKey> keys, std::span<SlotId> slots);
  /// A part of what is offered, last to first; see offer().
  struct OfferRun;
  void offer_batch(std::span<const BlockKey> keys, std::span<OfferAnswer> answers, OfferRun& run);
  /// How many of the absent blocks were offered more often than those were used that would leave
  /// for them. After the held ones of the offer have become the most recent.
  [[nodiscard]] std::size_t count_hotter(std::span<const BlockKey> keys,
                                         std::span<const OfferAnswer> answers);
  void await_slots(std::span<const SlotId> slots);
  /// How many of the slots, from the first on, can be read.
  [[nodiscard]] std::size_t num_readable(std::span<const SlotId> slots);
  void lease_slots(std::span<const SlotId> slots);
  /// Forgets the readable ones among `slots`, at most kBatch, from the last to the first.
  void forget_readable(std::span<const SlotId> slots);
  /// Free here, and not by what peers see: it stays out of use until it is.
  void set_aside(SlotId slot);
  /// Slots that are free here, at most kStep, are put aside unless peers say that they are.
  void set_aside_unless_free(std::span<SlotId> slots);
  /// Tells the policy how many slots there are, if that has changed much.
  void resize_policy();
  /// For take_key_events(): the slots' keys have become readable, or are about to be forgotten.
  void note(std::span<const SlotId> slots, bool readable);
  /// Moves the epoch on if keys were forgotten since the index had `num_keys_before`.
  void end_forgetting(std::uint32_t num_keys_before);
  void dcheck_conserved() const;

  BlockIndex index_;
  EvictionPolicy policy_;
  SlotTable table_;
  const std::unique_ptr<PeerSlots> peers_;
  std::uint64_t eviction_epoch_ = 0;
  std::uint64_t num_reserved_total_ = 0;
  std::uint64_t num_committed_total_ = 0;
  std::uint64_t num_evicted_total_ = 0;
  std::uint64_t num_exhausted_total_ = 0;
  std::uint64_t num_offered_total_ = 0;
  std::uint64_t num_declined_total_ = 0;
  std::uint32_t num_policy_slots_ = 0;
  std::vector<KeyEvent> key_events_;
  /// Free here, and not by what peers see, or withdrawn: out of use until they are.
  std::vector<SlotId> set_aside_;
  /// Slots that a device may still write when the tier is gone, and whether it may read some.
  std::uint32_t num_left_behind_ = 0;
  bool any_lease_left_ = false;
  const bool notes_key_events_;
  WeightsId told_;  ///< Those of the last take_key_events().
  const float max_awaited_share_;
};

}  // namespace kvferry::cpu_tier
