// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/cpu_tier/policy/eviction_memory.hpp"
#include "kvferry/cpu_tier/policy/hashed_lists.hpp"

#include <cstdint>

namespace kvferry::cpu_tier {

/// The ghosts of ARC (Megiddo, Modha, FAST 2003): its memory of evicted blocks, from which it
/// learns the share of the slots for probation (their T1). 28 to 32 bytes per slot.
///
/// Used by one thread at a time. Only construction throws.
class ArcGhosts final : public EvictionMemory {
 public:
  explicit ArcGhosts(std::uint32_t max_slots) : ghosts_(max_slots) {}

  void resize(std::uint32_t num_slots) override { num_slots_ = num_slots; }
  /// Returns kProtected if the block was evicted recently, which also changes the share.
  [[nodiscard]] Segment take(std::uint64_t hash) override;
  void evicted(std::uint64_t hash, Segment from, std::uint32_t num_probation) override;
  [[nodiscard]] float probation_share() const override {
    return num_slots_ == 0 ? 0 : static_cast<float>(target_ / num_slots_);
  }

 private:
  HashedLists ghosts_;  ///< One list for each segment: B1 and B2 in the paper.
  std::uint32_t num_slots_ = 0;
  double target_ = 0;  ///< p in the paper.
};

}  // namespace kvferry::cpu_tier
