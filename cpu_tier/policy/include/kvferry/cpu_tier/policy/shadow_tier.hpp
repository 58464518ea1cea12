// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/cpu_tier/policy/hashed_lists.hpp"
#include "kvferry/cpu_tier/policy/offer_history.hpp"
#include "kvferry/cpu_tier/policy/policy_rule.hpp"

#include <cstdint>

namespace kvferry::cpu_tier {

/// A tier without blocks that follows one rule: what would have been hit and stored. At most 120
/// bytes per slot.
///
/// One thread at a time. Nothing throws but construction.
class ShadowTier {
 public:
  enum class Outcome : std::uint8_t { kHit, kStored, kDeclined };

  /// `max_slots` > 0.
  ShadowTier(const PolicyRule& rule, std::uint32_t max_slots);

  /// One block of a request, which is stored if it is missing and the rule admits it.
  Outcome access(std::uint64_t hash);
  /// Empty again, with `num_slots` in [1, max_slots].
  void restart(std::uint32_t num_slots);

 private:
  static constexpr std::size_t kProbation = static_cast<std::size_t>(Segment::kProbation);
  static constexpr std::size_t kProtected = static_cast<std::size_t>(Segment::kProtected);

  [[nodiscard]] std::size_t victim_list();
  /// Makes room for a block that was offered `num_offers` times, or says that it is declined.
  [[nodiscard]] bool make_room(std::uint32_t num_offers);

  PolicyRule rule_;
  std::uint32_t num_slots_;
  std::uint32_t now_ = 0;
  HashedLists blocks_;
  OfferHistory history_;
};

}  // namespace kvferry::cpu_tier
