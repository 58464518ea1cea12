// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/ids.hpp"
#include "kvferry/base/mutex.hpp"
#include "kvferry/base/result.hpp"
#include "kvferry/cpu_tier/peers/guest_slots.hpp"
#include "kvferry/cpu_tier/peers/shared_slots.hpp"
#include "kvferry/cpu_tier/policy/eviction_policy.hpp"
#include "kvferry/cpu_tier/policy/tier_options.hpp"
#include "kvferry/cpu_tier/slots/block_index.hpp"
#include "kvferry/cpu_tier/slots/block_key.hpp"
#include "kvferry/cpu_tier/slots/slot_ledger.hpp"
#include "kvferry/cpu_tier/slots/slot_set.hpp"
#include "kvferry/cpu_tier/slots/tier_snapshot.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

/// The metadata of the CPU tier: which slot holds which block and who may touch it. The bytes are
/// in the ranks' arenas (arena.hpp).
///
/// Slot states. free -> writable (reserved by one transfer) -> readable (committed) -> free
/// (evicted). writable -> aborted (key forgotten, a device may still write) -> free. writable or
/// aborted -> quarantined
/// -> free. readable and leased -> dying (key forgotten, still leased) -> free. A readable slot
/// without a lease is evictable.
namespace kvferry::cpu_tier {

/// The tier took nothing, and evicted nothing: not a failure. Without `present` it is exhausted:
/// offer the blocks again later.
struct NotReserved {
  /// Slots that these keys could have got at that moment: free plus evictable ones, one per key at
  /// most.
  std::uint32_t num_available = 0;
  /// Index of the first key that the tier holds already, writable or readable.
  std::optional<std::size_t> present = std::nullopt;
};

/// A key that was to be leased is not readable.
struct NotReadable {
  std::size_t first = 0;  ///< Index of the first such key, where keys were given.
};

/// A readable prefix, as it was looked up: good as long as the tier's eviction epoch stays.
struct PrefixHit {
  std::uint64_t eviction_epoch = 0;
  std::vector<SlotId> slots;
  [[nodiscard]] std::size_t size() const { return slots.size(); }
};

/// Where a key stands.
enum class KeyState : std::uint8_t { kAbsent, kWritable, kReadable };

/// A key became readable, or ceased to be.
struct KeyEvent {
  BlockKey key;
  bool readable = false;
  bool operator==(const KeyEvent&) const = default;
};

/// What becomes of a block that is offered for a store.
enum class OfferAnswer : std::uint8_t {
  kHeld,     ///< The tier has it, or is getting it.
  kStore,    ///< To be reserved for, now or later.
  kDeclined  ///< Not worth its store now; it is remembered for the next offer.
};

/// A range of slots whose memory another slab class could have.
struct ColdRange {
  SlotRange slots;
  /// How much the tier's clock() has gone on since its slots were used, in the mean over its slots;
  /// nothing if all of them are free.
  std::optional<std::uint32_t> age = std::nullopt;
};

class CpuTier;

/// Slots taken all-or-nothing, in the order of the keys, that no device has seen yet. Move-only;
/// dropping it, on any thread, gives all of them back. `hand_over()` passes them to a transfer.
class [[nodiscard]] Reservation {
 public:
  Reservation(Reservation&& other) noexcept;
  Reservation& operator=(Reservation&& other) noexcept;
  Reservation(const Reservation&) = delete;
  Reservation& operator=(const Reservation&) = delete;
  ~Reservation();

  [[nodiscard]] std::span<const SlotId> slots() const { return slots_.slots(); }
  /// From here on a device may be told of them.
  [[nodiscard]] WritableSlots hand_over() &&;

 private:
  friend class CpuTier;
  Reservation(CpuTier* tier, WritableSlots slots) : tier_(tier), slots_(std::move(slots)) {}
  void give_back();

  CpuTier* tier_;
  WritableSlots slots_;
};

/// Slot ledger, exact-key index and eviction policy as one object, because every transition touches
/// all three.
///
/// Thread-safe: every call is one atomic step, and no thread sees half of one. A set or a lease is
/// used by one thread at a time, whichever. Between two calls of a thread others may come: what
/// was looked up may be gone, and a key that was absent present, so that reserve() and lease()
/// decide by themselves and say so by value. A slot found in another state than its set says is a
/// broken invariant. Nothing throws but construction, lookup_prefix(), reserve() and lease()
/// (std::bad_alloc; nothing changed then). In debug builds conservation (G10) is checked in every
/// transition.
///
/// One of a shared tier (`shared`) has the slots of its instance's own chunks. Every transition
/// that others may see is made in the slot's word, too: what another instance reads is not evicted,
/// and what it has read lately only later, so that reserve() may find less room than there seemed
/// to be, with evicted slots free then. Keys that others hold are found as well: as *guests*, slots
/// that are none of this tier's own counts and that can be looked up and leased like others.
class CpuTier {
 public:
  /// A tier that can grow to `max_slots` (index and slot table are sized for it once); none is
  /// usable yet. Throws ConfigError above BlockIndex::kMaxSlots, and for options out of range.
  explicit CpuTier(std::uint32_t max_slots, const TierOptions& options = {},
                   const std::optional<SharedSlots>& shared = std::nullopt);
  /// Every set and lease has been given back or left behind; one that is still out is a broken
  /// invariant.
  ~CpuTier();
  CpuTier(const CpuTier&) = delete;
  CpuTier& operator=(const CpuTier&) = delete;

  /// Makes slots [0, num_slots) usable; never fewer than before, at most max_slots.
  void grow_to(std::uint32_t num_slots);

  // ---- slots whose memory comes and goes (slab_tier.hpp); instead of grow_to() ----

  /// Makes the slots, absent ones, usable.
  void add_slots(SlotRange range);
  /// Makes the slots absent again, evicting the readable ones. Nothing, and false, if one of them
  /// is named: neither free nor evictable. (Of a shared tier some may have been evicted even so.)
  [[nodiscard]] bool remove_slots(SlotRange range);
  /// Of a shared tier: makes the slots of a chunk usable that this instance has just taken, with
  /// what is in them by their words. Nothing, and false, if one of them is a guest that is leased.
  [[nodiscard]] bool adopt_slots(SlotRange range);
  /// Of the ranges [k * `num_slots`, (k + 1) * `num_slots`) that hold the longest free slot or one
  /// of the coldest: the one whose slots were used longest ago, none of them named.
  [[nodiscard]] std::optional<ColdRange> coldest_range(std::uint32_t num_slots) const;
  /// Age of the coldest slot, as in ColdRange; nothing if none is evictable.
  [[nodiscard]] std::optional<std::uint32_t> coldest_age() const;
  /// Moves on with every use of a slot. Wraps.
  [[nodiscard]] std::uint32_t clock() const;
  /// Of the range, those that are usable.
  [[nodiscard]] std::uint32_t num_slots_in(SlotRange range) const;

  // ---- policy ----

  /// The blocks of one request, or of a piece of it, in order and once per request, computed,
  /// loaded or found: what the tier holds of them is touched; for the others it says whether they
  /// are to be stored. This stream of offers is what an adaptive policy learns from (not lookups,
  /// which a waiting request repeats: vllm#52227). Takes nothing, evicts nothing. A block that is
  /// admitted is reserved for when there is room for its copy; nobody offers it again for that. A
  /// tier with free slots, or none at all yet, admits what they will hold.
  /// `answers[i]` is for `keys[i]`; spans of one length. Those answered kStore are the first ones
  /// of the absent. `num_to_come`: slots that add_slots() could bring at once, as good as free.
  void offer(std::span<const BlockKey> keys, std::span<OfferAnswer> answers,
             std::size_t num_to_come = 0);
  /// A request with these blocks waits for its turn: what the tier holds of them, and nobody
  /// leases, is evicted after everything else until it is leased or touched: as far as
  /// max_awaited_share allows, the latest requests and their heads first, and for the time of one
  /// turnover of the tier, in which a request that never came is forgotten. It never makes a
  /// reservation fail.
  void await(std::span<const BlockKey> keys);
  /// The same for a hit, without another lookup; nothing if any key of the tier has ceased to be
  /// readable since.
  void await(const PrefixHit& hit);
  /// A request that was announced by await() will not come: what nobody else waits for is from now
  /// on as any other block that was used just now. Of keys that were not readable when they were
  /// announced, or were leased or touched since, another request's wait may end too.
  void end_await(std::span<const BlockKey> keys);

  // ---- store ----

  /// Takes one slot per key, evicting the coldest evictable slots where none is free: all of them,
  /// or none and NotReserved because there is no room, or because a key is not absent. The keys are
  /// distinct. Afterwards each is kWritable.
  [[nodiscard]] Result<Reservation, NotReserved> reserve(std::span<const BlockKey> keys);
  /// writable -> readable and evictable. The set is a prefix in order, its head the last to leave,
  /// or a later piece of one: then `predecessor` is the key before its head, and the set leaves
  /// right before that, so that a prefix that was stored piece by piece leaves from its tail too.
  /// Without an evictable predecessor it is the most recent.
  void commit(WritableSlots&& slots, const std::optional<BlockKey>& predecessor = std::nullopt);
  /// writable -> aborted: the keys are absent from now on and may be reserved anew; the slots are
  /// not reused.
  [[nodiscard]] AbortedSlots abort(WritableSlots&& slots);
  /// aborted -> free: no device can touch them any more.
  void release(AbortedSlots&& slots);
  /// aborted -> quarantined.
  [[nodiscard]] QuarantinedSlots quarantine(AbortedSlots&& slots);
  /// quarantined -> free, on proof that no device can touch them.
  void release(QuarantinedSlots&& slots);

  // ---- load ----

  /// The longest prefix of `keys` that is readable. Takes nothing, touches nothing. `known`: an
  /// earlier answer for keys that began alike; what of it still holds is not searched for again.
  [[nodiscard]] PrefixHit lookup_prefix(std::span<const BlockKey> keys, PrefixHit known = {}) const;
  /// State of each key: `states[i]` for `keys[i]`; spans of one length.
  void lookup(std::span<const BlockKey> keys, std::span<KeyState> states) const;
  /// One lease on each key, in order: all, or none and NotReadable. A slot may have many leases.
  /// For threads that share a tier: lookup and lease are one step.
  [[nodiscard]] Result<Lease, NotReadable> lease(std::span<const BlockKey> keys);
  /// One lease on each of the first `count` (at most size()) slots of a hit, without another
  /// lookup; NotReadable if any key of the tier has ceased to be readable since: for a thread that
  /// decides alone what is evicted.
  [[nodiscard]] Result<Lease, NotReadable> lease(const PrefixHit& hit, std::size_t count);
  /// Ends the leases. A slot's last one makes it evictable and most recent, or free if it was
  /// dying. The set is a prefix in order and is touched from its tail to its head, so that tails
  /// leave first.
  void release(Lease&& lease);
  /// Marks the readable keys of a prefix in order as recently used, from its tail to its head;
  /// ignores the others.
  void touch(std::span<const BlockKey> keys);
  /// The leased slots cease to be readable at once (their bytes are doubted); they are freed when
  /// their last lease ends. Slots that are dying already stay so.
  void forget(const Lease& lease);
  /// Forgets every readable key. Writable slots are their owners' to abort. O(num_slots), during
  /// which every other call waits.
  void forget_all();

  // ---- a shared tier ----

  /// Lets those guests go that were neither looked up nor leased since the last call: until then
  /// what a lookup has found stays. Called when no answer of a lookup is to be relied on.
  void drop_idle_guests();
  /// Frees what was set aside: slots that this instance has forgotten and another still reads, or
  /// that a process was filling which is gone.
  void settle_set_aside();

  // ---- the end ----

  /// The tier's owner ends, and devices may go on to write or read these slots: the tier may be
  /// destroyed with them, and does nothing with them until then. In a shared tier nobody else does
  /// either until no process of the instance lives: what may be written stays filling, what may be
  /// read stays leased, or in a chunk that stays this instance's.
  void leave_behind(AbortedSlots&& slots);
  void leave_behind(QuarantinedSlots&& slots);
  void leave_behind(Lease&& lease);

  /// The key of a slot that the caller has as writable or leased, and has not forgotten.
  [[nodiscard]] BlockKey key(SlotId slot) const;
  /// Moves on whenever a readable key ceases to be readable. While it stays, an answer of
  /// lookup_prefix() can only have become longer.
  [[nodiscard]] std::uint64_t eviction_epoch() const;
  /// What became readable or ceased to be since the last call, in order. Nothing without
  /// TierOptions::key_events.
  [[nodiscard]] std::vector<KeyEvent> take_key_events();
  [[nodiscard]] TierSnapshot snapshot() const;
  /// Name of the rule that decides now (policy_rule.hpp); ARC's admission has one too.
  [[nodiscard]] const char* rule_name() const;

  /// Walks all slots, lists and keys; anything inconsistent is a broken invariant. For tests.
  void check_invariants() const;

 private:
  friend class Reservation;
  /// Frees as many slots as `victims` has, and fills it with them.
  void evict(std::span<SlotId> victims) KVFERRY_REQUIRES(mutex_);
  /// Takes free slots for absent keys and maps these to them.
  void take(std::span<const BlockKey> keys, std::span<SlotId> slots) KVFERRY_REQUIRES(mutex_);
  /// A part of what is offered, last to first; see offer().
  struct OfferRun;
  void offer_batch(std::span<const BlockKey> keys, std::span<OfferAnswer> answers, OfferRun& run)
      KVFERRY_REQUIRES(mutex_);
  void await_slots(std::span<const SlotId> slots) KVFERRY_REQUIRES(mutex_);
  /// writable -> free: no device has seen the slots.
  void give_back(WritableSlots&& slots);
  /// Forgets the readable ones among `slots`, from the last to the first.
  void forget_readable(std::span<const SlotId> slots) KVFERRY_REQUIRES(mutex_);
  /// Tells the policy how many slots there are, if that has changed much.
  void resize_policy() KVFERRY_REQUIRES(mutex_);
  [[nodiscard]] std::optional<ColdRange> cold_range(SlotRange range) const KVFERRY_REQUIRES(mutex_);
  // Of a shared tier (cpu_tier_shared.cpp):
  /// Of slots just taken: those that were free, and not evicted for this, begin to be filled.
  void begin_fill(std::span<const SlotId> slots, std::uint32_t num_free) const;
  void abandon(std::span<const SlotId> slots) const;
  void publish(std::span<const SlotId> slots) KVFERRY_REQUIRES(mutex_);
  /// Whether there may be guests to be found.
  [[nodiscard]] bool sees_others() const KVFERRY_REQUIRES(mutex_) {
    return guests_ && !guests_->finds_nothing();
  }
  /// Replaces each absent one of the keys' slots by that of a guest, if there is one. These two
  /// where sees_others().
  void find_guests(std::span<const BlockKey> keys, std::span<SlotId> slots) const
      KVFERRY_REQUIRES(mutex_);
  /// slots[i] if it is not absent, else that of a guest with keys[i], if there is one. Called with
  /// ascending `i`.
  [[nodiscard]] SlotId guest_if_absent(std::span<const BlockKey> keys,
                                       std::span<const SlotId> slots, std::size_t i) const
      KVFERRY_REQUIRES(mutex_);
  /// Makes the guests among the slots absent: their keys are about to be this instance's own.
  void hide_guests(std::span<SlotId> slots) KVFERRY_REQUIRES(mutex_);
  /// As evict(), of what nobody else reads: the victims are filling. Whether there was so much; if
  /// not, what was evicted is free.
  [[nodiscard]] bool evict_unused(std::span<SlotId> victims) KVFERRY_REQUIRES(mutex_);
  /// Frees the readable ones among `slots`, unless others read them. Whether none did.
  [[nodiscard]] bool evict_unread(std::span<const SlotId> slots) KVFERRY_REQUIRES(mutex_);
  [[nodiscard]] bool any_read_by_others(SlotRange range) const KVFERRY_REQUIRES(mutex_);
  /// Own slots are asked for in the ledger alone, which has them at hand.
  [[nodiscard]] bool is_guest(SlotId slot) const KVFERRY_REQUIRES(mutex_) {
    return guests_ && ledger_.state(slot) == SlotState::kAbsent && guests_->knows(slot);
  }
  /// Whether somebody who asks for it can read it: an own slot or a guest.
  [[nodiscard]] bool readable(SlotId slot) const KVFERRY_REQUIRES(mutex_) {
    return ledger_.readable(slot) || (guests_ && guests_->ask_for(slot));
  }
  [[nodiscard]] bool holds(SlotId slot, const BlockKey& key) const KVFERRY_REQUIRES(mutex_);
  void lease_slots(std::span<const SlotId> slots) KVFERRY_REQUIRES(mutex_);
  void end_leases(std::span<const SlotId> slots) KVFERRY_REQUIRES(mutex_);
  /// Free here, but not by its word: it stays out of use until it is.
  void set_aside(SlotId slot) KVFERRY_REQUIRES(mutex_);
  /// The same of new slots that are not free by their words.
  void set_aside_unless_free(SlotRange range) KVFERRY_REQUIRES(mutex_);

  /// For take_key_events(): the slots' keys have become readable, or are about to be forgotten.
  void note(std::span<const SlotId> slots, bool readable) KVFERRY_REQUIRES(mutex_);
  /// Moves the epoch on if keys were forgotten since the index had `num_keys_before`.
  void end_forgetting(std::uint32_t num_keys_before) KVFERRY_REQUIRES(mutex_);
  [[nodiscard]] TierSnapshot snapshot_locked() const KVFERRY_REQUIRES(mutex_);
  void dcheck_conserved() const KVFERRY_REQUIRES(mutex_);

  mutable Mutex mutex_;
  BlockIndex index_ KVFERRY_GUARDED_BY(mutex_);
  EvictionPolicy policy_ KVFERRY_GUARDED_BY(mutex_);
  SlotLedger ledger_ KVFERRY_GUARDED_BY(mutex_);
  std::uint64_t eviction_epoch_ KVFERRY_GUARDED_BY(mutex_) = 0;
  std::uint64_t num_reserved_total_ KVFERRY_GUARDED_BY(mutex_) = 0;
  std::uint64_t num_committed_total_ KVFERRY_GUARDED_BY(mutex_) = 0;
  std::uint64_t num_evicted_total_ KVFERRY_GUARDED_BY(mutex_) = 0;
  std::uint64_t num_exhausted_total_ KVFERRY_GUARDED_BY(mutex_) = 0;
  std::uint64_t num_offered_total_ KVFERRY_GUARDED_BY(mutex_) = 0;
  std::uint64_t num_declined_total_ KVFERRY_GUARDED_BY(mutex_) = 0;
  std::uint32_t num_policy_slots_ KVFERRY_GUARDED_BY(mutex_) = 0;
  std::vector<KeyEvent> key_events_ KVFERRY_GUARDED_BY(mutex_);
  const std::optional<SharedSlots> shared_;
  /// Of a shared tier only.
  const std::unique_ptr<GuestSlots> guests_ KVFERRY_GUARDED_BY(mutex_);
  std::vector<SlotId> set_aside_ KVFERRY_GUARDED_BY(mutex_);
  /// Slots that a device may still write when the tier is gone, and whether it may read some.
  std::uint32_t num_left_behind_ KVFERRY_GUARDED_BY(mutex_) = 0;
  bool any_lease_left_ KVFERRY_GUARDED_BY(mutex_) = false;
  const bool notes_key_events_;
  float max_awaited_share_;
};

}  // namespace kvferry::cpu_tier
