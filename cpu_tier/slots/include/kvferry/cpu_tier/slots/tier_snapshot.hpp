// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

namespace kvferry::cpu_tier {

/// One consistent view of a tier or of one of its slab classes. The first seven counts sum to
/// `num_slots` (G10). Counters are since construction.
struct TierSnapshot {
  std::uint32_t num_free = 0;
  std::uint32_t num_writable = 0;
  std::uint32_t num_aborted = 0;
  std::uint32_t num_evictable = 0;  ///< Readable and not leased.
  std::uint32_t num_leased = 0;     ///< Readable and leased.
  std::uint32_t num_dying = 0;
  std::uint32_t num_quarantined = 0;
  std::uint32_t num_slots = 0;
  std::uint64_t num_reserved_total = 0;
  std::uint64_t num_committed_total = 0;
  std::uint64_t num_evicted_total = 0;
  std::uint64_t num_exhausted_total = 0;
  std::uint64_t num_awaited = 0;              ///< Evictable slots for which queued requests wait.
  std::uint64_t num_offered_total = 0;        ///< Absent blocks that were offered for a store.
  std::uint64_t num_declined_total = 0;       ///< Those of them that were not admitted.
  std::uint64_t num_rule_switches_total = 0;  ///< How often an adaptive tier changed its rule.
  // About clients' promises (PromiseLedger):
  std::uint64_t num_promised = 0;     ///< Keys.
  std::uint64_t num_stays = 0;        ///< Evictable slots that stay beyond their turn to leave.
  std::uint64_t num_stays_max = 0;    ///< How many are allowed to stay now.
  std::uint64_t num_won_total = 0;    ///< Blocks that had stayed and were loaded.
  std::uint64_t num_lost_total = 0;   ///< Blocks that had left for them, and were requested.
  std::uint64_t num_early_total = 0;  ///< Blocks that left early.
  std::uint32_t num_set_aside = 0;    ///< Quarantined slots that belong to no transfer.
  // For a shared tier:
  std::uint32_t num_guests = 0;         ///< Slots of other instances that this one has found.
  std::uint32_t num_leased_guests = 0;  ///< Those of them that are leased.
  std::uint64_t num_guests_total = 0;   ///< How often another instance's slot was found.

  bool operator==(const TierSnapshot&) const = default;

  /// Adds up several tiers.
  TierSnapshot& operator+=(const TierSnapshot& other) {
    num_free += other.num_free;
    num_writable += other.num_writable;
    num_aborted += other.num_aborted;
    num_evictable += other.num_evictable;
    num_leased += other.num_leased;
    num_dying += other.num_dying;
    num_quarantined += other.num_quarantined;
    num_slots += other.num_slots;
    num_reserved_total += other.num_reserved_total;
    num_committed_total += other.num_committed_total;
    num_evicted_total += other.num_evicted_total;
    num_exhausted_total += other.num_exhausted_total;
    num_awaited += other.num_awaited;
    num_offered_total += other.num_offered_total;
    num_declined_total += other.num_declined_total;
    num_rule_switches_total += other.num_rule_switches_total;
    num_promised += other.num_promised;
    num_stays += other.num_stays;
    num_stays_max += other.num_stays_max;
    num_won_total += other.num_won_total;
    num_lost_total += other.num_lost_total;
    num_early_total += other.num_early_total;
    num_set_aside += other.num_set_aside;
    num_guests += other.num_guests;
    num_leased_guests += other.num_leased_guests;
    num_guests_total += other.num_guests_total;
    return *this;
  }
  [[nodiscard]] bool conserved() const {
    return std::uint64_t{num_free} + num_writable + num_aborted + num_evictable + num_leased +
               num_dying + num_quarantined ==
           num_slots;
  }
};

/// The chunks of one slab class.
struct SlabClassSnapshot {
  std::uint32_t slots_per_chunk = 0;
  std::uint32_t num_chunks = 0;
  std::uint64_t num_gained_total = 0;  ///< Chunks that came from another class.
  TierSnapshot tier;
  bool operator==(const SlabClassSnapshot&) const = default;
};

/// One consistent view of which class has which chunk.
struct SlabSnapshot {
  std::uint32_t num_chunks = 0;
  std::uint32_t num_free_chunks = 0;  ///< Of no class.
  std::vector<SlabClassSnapshot> classes;
  bool operator==(const SlabSnapshot&) const = default;
};

}  // namespace kvferry::cpu_tier
