// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/mutex.hpp"
#include "kvferry/cpu_tier/memory/slab_geometry.hpp"
#include "kvferry/cpu_tier/peers/tier_records.hpp"
#include "kvferry/cpu_tier/slots/block_key.hpp"

#include <atomic>
#include <cstdint>
#include <optional>
#include <unordered_map>

namespace kvferry::cpu_tier {

/// What one engine instance finds in the slots of other instances of a shared tier, or in slots
/// without an owner, and its leases on them.
///
/// Any thread.
class PeerLeases {
 public:
  /// `records` outlive this.
  explicit PeerLeases(const TierRecords& records) : records_(records) {}
  PeerLeases(const PeerLeases&) = delete;
  PeerLeases& operator=(const PeerLeases&) = delete;

  /// A lease on the slot of another instance, or of no owner, that holds the key: nothing if none
  /// can be found, or this instance has it leased. Ended by end_lease().
  [[nodiscard]] std::optional<SlotPlace> lease(const BlockKey& key);
  /// Whether lease() would probably succeed. Takes nothing.
  [[nodiscard]] bool has(const BlockKey& key) const;
  void end_lease(SlotPlace place);
  /// The lease outlasts the instance's TierDirectory, because a rank may still read the slot: it
  /// ends with the instance's last process.
  void leave_lease(SlotPlace place);
  /// What the slot, one that is leased, holds now is found by this instance no more: its bytes are
  /// doubted, and only its owner can forget it for all.
  void shun(SlotPlace place);
  /// Leases that have neither ended nor been left.
  [[nodiscard]] std::uint64_t num_leases() const {
    return num_leases_.load(std::memory_order_relaxed);
  }

  /// Whether lease() and has() find nothing now, whatever the key (TierDirectory::look_around()).
  [[nodiscard]] bool is_alone() const { return is_alone_.load(std::memory_order_relaxed); }
  /// By look_around() alone.
  void set_alone(bool is_alone) { is_alone_.store(is_alone, std::memory_order_relaxed); }

  /// The line that lease() and has() need first, to be used soon.
  void prefetch(const BlockKey& key) const { records_.hints().prefetch(records_.hash_of(key)); }
  /// Those that they need next, once that one has come.
  void prefetch_slots(const BlockKey& key) const { records_.prefetch_slots(key); }

 private:
  [[nodiscard]] bool is_shunned(SlotPlace place) const;

  const TierRecords& records_;
  std::atomic<bool> is_alone_{false};
  std::atomic<std::uint64_t> num_leases_{0};
  mutable Mutex mutex_;
  /// By slot, the generation that is shunned.
  mutable std::unordered_map<std::uint64_t, std::uint32_t> shunned_ KVFERRY_GUARDED_BY(mutex_);
  /// Whether there may be any: hardly ever.
  mutable std::atomic<bool> any_shunned_{false};
};

}  // namespace kvferry::cpu_tier
