// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/cpu_tier/policy/eviction_memory.hpp"
#include "kvferry/cpu_tier/policy/hashed_lists.hpp"

#include <cstdint>

namespace kvferry::cpu_tier {

/// What ARC (Megiddo, Modha, FAST 2003) remembers of evicted blocks, and the share that it gives to
/// probation (their T1) by it. 28 to 32 bytes per slot.
///
/// One thread at a time. Nothing throws but construction.
class ArcGhosts final : public EvictionMemory {
 public:
  explicit ArcGhosts(std::uint32_t max_slots) : ghosts_(max_slots) {}

  void resize(std::uint32_t num_slots) override { num_slots_ = num_slots; }
  /// Protected if it was evicted lately, which also moves the share.
  [[nodiscard]] Segment take(std::uint64_t hash) override;
  void evicted(std::uint64_t hash, Segment from, std::uint32_t num_probation) override;
  [[nodiscard]] float probation_share() const override {
    return num_slots_ == 0 ? 0 : static_cast<float>(target_ / num_slots_);
  }

 private:
  HashedLists ghosts_;  ///< Lists by segment: their B1 and B2.
  std::uint32_t num_slots_ = 0;
  double target_ = 0;  ///< Their p.
};

}  // namespace kvferry::cpu_tier
