// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/cpu_tier/policy/hashed_lists.hpp"
#include "kvferry/cpu_tier/policy/offer_history.hpp"
#include "kvferry/cpu_tier/policy/policy_rule.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace kvferry::cpu_tier {

/// A simulated tier without blocks, which follows one rule. It says for each request which blocks
/// could have been loaded, and which would have been stored. It decides like SlotClass::offer() and
/// its eviction. At most 85 bytes per slot.
///
/// Used by one thread at a time. Only construction throws.
class ShadowTier {
 public:
  struct Outcome {
    std::uint32_t num_held = 0;
    std::uint32_t num_loads = 0;  ///< Held blocks before the first absent one.
    std::uint32_t num_stores = 0;
  };

  /// `max_slots` > 0.
  ShadowTier(const PolicyRule& rule, std::uint32_t max_slots);

  /// Offers the blocks of a request, or of a part of it, from the last to the first; at most
  /// max_slots.
  Outcome offer(std::span<const std::uint64_t> hashes);
  /// Empties the tier, which then has `num_slots` slots, 1 to max_slots.
  void restart(std::uint32_t num_slots);
  /// How many blocks of `other` this tier does not hold.
  [[nodiscard]] std::uint32_t num_missing_of(const ShadowTier& other) const;

 private:
  static constexpr std::size_t kProbation = static_cast<std::size_t>(Segment::kProbation);
  static constexpr std::size_t kProtected = static_cast<std::size_t>(Segment::kProtected);

  void touch(std::uint32_t entry);
  /// How many of the absent blocks the rule admits.
  [[nodiscard]] std::uint32_t count_admitted(std::span<const std::uint64_t> hashes);
  void evict(std::uint32_t count);
  [[nodiscard]] std::size_t victim_list() const;
  /// Stores the first `count` absent blocks, each colder than the block before it.
  void store(std::span<const std::uint64_t> hashes, std::uint32_t count);

  PolicyRule rule_;
  std::uint32_t num_slots_;
  std::uint32_t now_ = 0;
  /// The entries of the offer's blocks; kNone: absent.
  std::vector<std::uint32_t> entries_;
  /// For each absent block of the offer, how often it was offered, as far as it is known or later
  /// blocks prove it.
  std::vector<std::uint8_t> offers_;
  HashedLists blocks_;
  std::optional<OfferHistory> history_;  ///< Unset for plain LRU.
};

}  // namespace kvferry::cpu_tier
