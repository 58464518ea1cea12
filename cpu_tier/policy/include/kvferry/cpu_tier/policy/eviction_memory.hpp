// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/cpu_tier/policy/policy_rule.hpp"

#include <cstdint>

namespace kvferry::cpu_tier {

/// The memory of an eviction policy that chooses victims by what it remembers about absent blocks,
/// instead of by a rule. Its share replaces the rule's VictimRule.
///
/// Used by one thread at a time: the tier calls it under its lock. Only construction throws.
class EvictionMemory {
 public:
  EvictionMemory() = default;
  EvictionMemory(const EvictionMemory&) = delete;
  EvictionMemory& operator=(const EvictionMemory&) = delete;
  virtual ~EvictionMemory() = default;

  /// The tier has this many slots now, at most as many as the memory was made for.
  virtual void resize(std::uint32_t num_slots) = 0;
  /// A block is being stored. Returns the segment in which it begins.
  [[nodiscard]] virtual Segment take(std::uint64_t hash) = 0;
  /// A block was evicted; `num_probation` blocks are still on probation.
  virtual void evicted(std::uint64_t hash, Segment from, std::uint32_t num_probation) = 0;
  /// Victims are taken from probation while that holds more than this share of all slots.
  [[nodiscard]] virtual float probation_share() const = 0;
};

}  // namespace kvferry::cpu_tier
