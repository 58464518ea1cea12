// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/cpu_tier/policy/policy_rule.hpp"

#include <cstdint>

namespace kvferry::cpu_tier {

/// What an eviction policy remembers of blocks that are not held, if it chooses victims by that and
/// not by a rule. Its share takes the place of the rule's VictimRule.
///
/// One thread at a time: the tier calls it under its lock. Nothing throws but construction.
class EvictionMemory {
 public:
  EvictionMemory() = default;
  EvictionMemory(const EvictionMemory&) = delete;
  EvictionMemory& operator=(const EvictionMemory&) = delete;
  virtual ~EvictionMemory() = default;

  /// The tier has this many slots now; at most those that the memory was made for.
  virtual void resize(std::uint32_t num_slots) = 0;
  /// A block is stored: the segment in which it begins.
  [[nodiscard]] virtual Segment take(std::uint64_t hash) = 0;
  /// A block was evicted; `num_probation` are still on probation.
  virtual void evicted(std::uint64_t hash, Segment from, std::uint32_t num_probation) = 0;
  /// Victims are taken from probation while that holds more than this share of all slots.
  [[nodiscard]] virtual float probation_share() const = 0;
};

}  // namespace kvferry::cpu_tier
