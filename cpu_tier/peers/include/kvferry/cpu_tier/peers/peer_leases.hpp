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

/// Finds keys in slots of a shared tier that belong to other instances, or to no instance, and
/// holds this instance's leases on them.
///
/// Any thread.
class PeerLeases {
 public:
  /// `records` outlive this.
  explicit PeerLeases(const TierRecords& records) : records_(records) {}
  PeerLeases(const PeerLeases&) = delete;
  PeerLeases& operator=(const PeerLeases&) = delete;

  /// Leases the slot of another instance, or without an owner, that holds the key. Returns nothing
  /// if no such slot is found, or if this instance has already leased it. end_lease() ends the
  /// lease.
  [[nodiscard]] std::optional<SlotPlace> lease(const BlockKey& key);
  /// Whether lease() would probably succeed. Leases nothing.
  [[nodiscard]] bool has(const BlockKey& key) const;
  void end_lease(SlotPlace place);
  /// Makes the lease outlast the instance's TierDirectory, because a rank could still read the
  /// slot. The lease ends with the instance's last process.
  void leave_lease(SlotPlace place);
  /// This instance no longer finds the current content of a leased slot, because its bytes are in
  /// doubt. Only the slot's owner can forget it for all instances.
  void shun(SlotPlace place);
  /// Number of leases that were neither ended nor left behind.
  [[nodiscard]] std::uint64_t num_leases() const {
    return num_leases_.load(std::memory_order_relaxed);
  }

  /// Whether lease() and has() currently find nothing for any key (TierDirectory::look_around()).
  [[nodiscard]] bool is_alone() const { return is_alone_.load(std::memory_order_relaxed); }
  /// Called only by look_around().
  void set_alone(bool is_alone) { is_alone_.store(is_alone, std::memory_order_relaxed); }

  /// Prefetches the cache line that lease() and has() need first.
  void prefetch(const BlockKey& key) const { records_.hints().prefetch(records_.hash_of(key)); }
  /// Prefetches the lines that they need next, after the first line has arrived.
  void prefetch_slots(const BlockKey& key) const { records_.prefetch_slots(key); }

 private:
  [[nodiscard]] bool is_shunned(SlotPlace place) const;

  const TierRecords& records_;
  std::atomic<bool> is_alone_{false};
  std::atomic<std::uint64_t> num_leases_{0};
  mutable Mutex mutex_;
  /// The generation that is ignored, by slot.
  mutable std::unordered_map<std::uint64_t, std::uint32_t> shunned_ KVFERRY_GUARDED_BY(mutex_);
  /// Whether any slot is ignored, which is rare.
  mutable std::atomic<bool> any_shunned_{false};
};

}  // namespace kvferry::cpu_tier
