// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/ids.hpp"
#include "kvferry/base/result.hpp"
#include "kvferry/cpu_tier/block_index.hpp"
#include "kvferry/cpu_tier/block_key.hpp"
#include "kvferry/cpu_tier/slot_ledger.hpp"
#include "kvferry/cpu_tier/slot_set.hpp"
#include "kvferry/cpu_tier/tier_snapshot.hpp"

#include <cstddef>
#include <cstdint>
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

/// The tier has no room: not a failure. Offer the blocks again later.
struct Exhausted {
  std::uint32_t num_available = 0;  ///< Free plus evictable slots at that moment.
};

/// A key that was to be leased is not readable.
struct NotReadable {
  std::size_t first = 0;  ///< Index of the first such key.
};

/// A readable prefix, as it was looked up: good as long as the tier's eviction epoch stays.
struct PrefixHit {
  std::uint64_t eviction_epoch = 0;
  std::vector<SlotId> slots;
  [[nodiscard]] std::size_t size() const { return slots.size(); }
};

/// Where a key stands.
enum class KeyState : std::uint8_t { kAbsent, kWritable, kReadable };

class CpuTier;

/// Slots taken all-or-nothing, in the order of the keys, that no device has seen yet. Move-only;
/// dropping it gives all of them back. `hand_over()` passes them to a transfer.
class [[nodiscard]] Reservation {
 public:
  Reservation(Reservation&& other) noexcept;
  Reservation& operator=(Reservation&& other) noexcept;
  Reservation(const Reservation&) = delete;
  Reservation& operator=(const Reservation&) = delete;
  ~Reservation();

  [[nodiscard]] std::span<const SlotId> slots() const { return slots_.slots(); }
  [[nodiscard]] WritableSlots hand_over() && { return std::move(slots_); }

 private:
  friend class CpuTier;
  Reservation(CpuTier* tier, WritableSlots slots) : tier_(tier), slots_(std::move(slots)) {}
  CpuTier* tier_;
  WritableSlots slots_;
};

/// Slot ledger, exact-key index and LRU as one object, because every transition touches all three.
///
/// One thread at a time (the scheduler's); not thread-safe. A slot found in another state than its
/// set says is a broken invariant. Nothing throws but construction, reserve() and lease()
/// (std::bad_alloc; nothing changed then). In debug builds conservation (G10) is checked after
/// every transition.
class CpuTier {
 public:
  /// A tier that can grow to `max_slots` (index and slot table are sized for it once); none is
  /// usable yet. Throws ConfigError above BlockIndex::kMaxSlots.
  explicit CpuTier(std::uint32_t max_slots);
  /// Every set and lease has been given back; one that is still out is a broken invariant.
  ~CpuTier();
  CpuTier(const CpuTier&) = delete;
  CpuTier& operator=(const CpuTier&) = delete;

  /// Makes slots [0, num_slots) usable; never fewer than before, at most max_slots.
  void grow_to(std::uint32_t num_slots);

  // ---- store ----

  /// Takes one slot per key, evicting the coldest evictable slots where none is free: all of them
  /// or none; on Exhausted nothing was evicted. The keys are absent and distinct. Afterwards each
  /// is kWritable.
  [[nodiscard]] Result<Reservation, Exhausted> reserve(std::span<const BlockKey> keys);
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
  [[nodiscard]] Result<Lease, NotReadable> lease(std::span<const BlockKey> keys);
  /// One lease on each of the first `count` (at most size()) slots of a hit, without another
  /// lookup; NotReadable if a key has ceased to be readable since it was looked up.
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
  /// The readable among the keys cease to be so at once (their bytes are doubted); ignores the
  /// others.
  void forget(std::span<const BlockKey> keys);
  /// Forgets every readable key. Writable slots are their owners' to abort.
  void forget_all();

  /// The key of a writable or readable slot.
  [[nodiscard]] const BlockKey& key(SlotId slot) const { return index_.key(slot); }
  /// Moves on whenever a readable key ceases to be readable. While it stays, an answer of
  /// lookup_prefix() can only have become longer.
  [[nodiscard]] std::uint64_t eviction_epoch() const;
  [[nodiscard]] TierSnapshot snapshot() const;

  /// Walks all slots, lists and keys; anything inconsistent is a broken invariant. For tests.
  void check_invariants() const;

 private:
  friend class Reservation;
  /// writable -> free: no device has seen the slots.
  void give_back(WritableSlots&& slots);
  /// Forgets the readable ones among `slots` (kNoSlot is ignored), from the last to the first.
  void forget_readable(std::span<const SlotId> slots);
  void dcheck_conserved() const;

  BlockIndex index_;
  SlotLedger ledger_;
  std::uint64_t eviction_epoch_ = 0;
  std::uint64_t num_reserved_total_ = 0;
  std::uint64_t num_committed_total_ = 0;
  std::uint64_t num_evicted_total_ = 0;
  std::uint64_t num_exhausted_total_ = 0;
};

}  // namespace kvferry::cpu_tier
