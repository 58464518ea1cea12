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
#include "kvferry/cpu_tier/slots/tier_moves.hpp"
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
/// functions document each of these. Here slots are passed as plain ids, without the type that says
/// what may be done with them.
///
/// Called under the tier's lock. A slot in another state than a call expects is a broken invariant.
/// Only construction and the functions that find guests throw (std::bad_alloc; then nothing has
/// changed). Debug builds check conservation (G10) in every transition.
class SlotClass {
 public:
  /// For slots [0, max_slots), all absent yet. `peers` outlives this object. Throws ConfigError
  /// above BlockIndex::kMaxSlots, and for options out of range.
  SlotClass(std::uint32_t max_slots, const TierOptions& options, Peers& peers,
            const ChunkShape& shape);
  /// By then every slot and lease has been given back or left behind.
  ~SlotClass();
  SlotClass(const SlotClass&) = delete;
  SlotClass& operator=(const SlotClass&) = delete;

  // ---- memory that comes and goes (slot_class_chunks.cpp) ----

  /// Makes absent slots usable.
  void add(SlotRange range);
  /// Makes the slots absent again, and evicts the readable ones. Returns false, and the slots stay,
  /// if one is named (neither free nor evictable) or a peer reads one. Some may have been evicted
  /// even then. Those beside one that a peer reads leave last from now on.
  [[nodiscard]] bool remove(SlotRange range);
  /// Makes the slots of a chunk usable that was just taken with its contents. Returns false, and
  /// nothing has changed, if one of them is a leased guest.
  [[nodiscard]] bool adopt(SlotRange range);

  // ---- uses that move no block (slot_class_uses.cpp; promises: slot_promises.hpp) ----

  /// `num_to_come` slots are as good as free. `num_ever` is the most slots that there can ever be.
  void offer(std::span<const BlockKey> keys, std::span<OfferAnswer> answers,
             std::size_t num_to_come, std::size_t num_ever);
  void await(std::span<const BlockKey> keys);
  void await(const PrefixHit& hit);
  void end_await(std::span<const BlockKey> keys);
  void touch(std::span<const BlockKey> keys);

  // ---- stores (slot_class.cpp) ----

  /// Fills `slots`, one for each key, or returns why not and takes none. Slots may have been
  /// evicted even then, because only an eviction shows whether a peer uses a slot.
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
  /// Fills `slots`, one for each key, and leases each, or returns which key cannot be read.
  [[nodiscard]] std::optional<NotReadable> lease(std::span<const BlockKey> keys,
                                                 std::span<SlotId> slots);
  /// Leases the slots of a hit of that epoch.
  [[nodiscard]] std::optional<NotReadable> lease(std::uint64_t eviction_epoch,
                                                 std::span<const SlotId> slots);
  void end_leases(std::span<const SlotId> slots);
  /// Makes the leased slots unreadable.
  void forget(std::span<const SlotId> slots, MoveKind why);
  void forget_all(std::optional<WeightsId> of);

  // ---- the end, and work between steps ----

  /// After the tier has ended, a device may still write the slots (`state` is quarantined) or read
  /// them (`state` is leased).
  void leave_behind(std::span<const SlotId> slots, SlotState state);
  void drop_idle_guests();
  /// Frees slots that were set aside, if they may be free.
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
  friend class TierMoves;
  /// Makes the leased slots unreadable, for peers too. They are never free again.
  void withdraw(std::span<const SlotId> slots);
  /// Forgets slots that peers have withdrawn.
  void forget_withdrawn();
  /// A peer uses some of these slots: those that are evictable leave last from now on.
  void keep_warm(SlotRange range);
  /// Frees as many slots as `victims` has, but none that a peer uses, and fills `victims` with
  /// them. Returns how many there were.
  [[nodiscard]] std::size_t evict(std::span<SlotId> victims);
  /// Evicts the slots one after the other, and tells the ledger.
  void evict_in_turn(std::span<SlotId> victims);
  /// Counts what a load of these slots owes to slots that stayed: all slots from the first of these
  /// on.
  void count_won(std::span<const SlotId> slots);
  /// Marks the slots whose blocks are promised.
  void mark_promised(std::span<const SlotId> slots);
  /// Takes free slots for absent keys and maps these to them.
  void take(std::span<const BlockKey> keys, std::span<SlotId> slots);
  /// A part of an offer, from the last key to the first; see offer().
  struct OfferRun;
  void offer_batch(std::span<const BlockKey> keys, std::span<OfferAnswer> answers, OfferRun& run);
  /// How many of the absent blocks were offered more often than the blocks that would leave for
  /// them were used. Call it after the offer's held blocks have become the most recent.
  [[nodiscard]] std::size_t count_hotter(std::span<const BlockKey> keys,
                                         std::span<const OfferAnswer> answers);
  void await_slots(std::span<const SlotId> slots);
  /// How many of the slots, from the first on, can be read.
  [[nodiscard]] std::size_t num_readable(std::span<const SlotId> slots);
  void lease_slots(std::span<const SlotId> slots);
  /// Forgets the readable slots among `slots`, at most kBatch, from the last to the first.
  void forget_readable(std::span<const SlotId> slots, MoveKind why);
  /// The slot is free here, but not for peers, so it stays out of use until it is.
  void set_aside(SlotId slot);
  /// Sets aside those of the slots (free here, at most kStep) that are not free for peers.
  void set_aside_unless_free(std::span<SlotId> slots);
  /// Tells the policy the number of slots, if it has changed much.
  void resize_policy();
  /// For take_key_events() and TierMoves: the slots' keys have become readable, or are about to be
  /// forgotten.
  void note(std::span<const SlotId> slots, MoveKind kind);
  /// Advances the epoch if keys were forgotten since the index had `num_keys_before`.
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
  std::vector<KeyMove> key_moves_;
  /// Free here, but not for peers, or withdrawn: out of use until they are free.
  std::vector<SlotId> set_aside_;
  /// How many slots a device may still write after the tier is gone, and whether it may read some.
  std::uint32_t num_left_behind_ = 0;
  bool any_lease_left_ = false;
  const bool notes_key_events_;
  const bool notes_key_moves_;
  WeightsId told_;  ///< The weights of the last take_key_events().
  const float max_awaited_share_;
};

}  // namespace kvferry::cpu_tier
