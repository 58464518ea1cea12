// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/cpu_tier/policy/hashed_lists.hpp"
#include "kvferry/cpu_tier/policy/offer_history.hpp"
#include "kvferry/cpu_tier/policy/policy_rule.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace kvferry::cpu_tier {

/// A tier without blocks that follows one rule: what could have been loaded of each request, and
/// what would have been stored. It decides as SlotClass::offer() and the eviction do. At most 80
/// bytes per slot.
///
/// One thread at a time. Nothing throws but construction.
class ShadowTier {
 public:
  /// Most blocks of one offer.
  static constexpr std::size_t kMaxOffer = 512;

  struct Outcome {
    std::uint32_t num_held = 0;
    std::uint32_t num_loads = 0;  ///< Blocks held before the first one that is not.
    std::uint32_t num_stores = 0;
  };

  /// `max_slots` > 0.
  ShadowTier(const PolicyRule& rule, std::uint32_t max_slots);

  /// The blocks of a request, or of a piece of it, last to first; at most kMaxOffer.
  Outcome offer(std::span<const std::uint64_t> hashes);
  /// Empty again, with `num_slots` in [1, max_slots].
  void restart(std::uint32_t num_slots);
  /// How many blocks of `other` this one has not.
  [[nodiscard]] std::uint32_t num_missing_of(const ShadowTier& other) const;

 private:
  static constexpr std::size_t kProbation = static_cast<std::size_t>(Segment::kProbation);
  static constexpr std::size_t kProtected = static_cast<std::size_t>(Segment::kProtected);
  using Entries = std::array<std::uint32_t, kMaxOffer>;

  void touch(std::uint32_t entry);
  /// How many of the absent blocks are admitted.
  [[nodiscard]] std::uint32_t count_admitted(std::span<const std::uint64_t> hashes,
                                             const Entries& entries);
  void evict(std::uint32_t count);
  [[nodiscard]] std::size_t victim_list() const;
  /// Stores the first `count` absent ones, colder than what stands before them.
  void store(std::span<const std::uint64_t> hashes, const Entries& entries, std::uint32_t count);

  PolicyRule rule_;
  std::uint32_t num_slots_;
  std::uint32_t now_ = 0;
  /// Of the offer's absent blocks: how often they were offered, as far as later ones prove it.
  std::array<std::uint8_t, kMaxOffer> offers_;
  HashedLists blocks_;
  std::optional<OfferHistory> history_;  ///< None for plain LRU.
};

}  // namespace kvferry::cpu_tier
