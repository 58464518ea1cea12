// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/cpu_tier/policy/policy_rule.hpp"
#include "kvferry/cpu_tier/policy/shadow_tier.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvferry::cpu_tier {

/// Chooses the rule that would have served the tier best lately, from a simulation of each on a
/// sample of the keys: the same share of the keys and of the slots, so that a small tier misses
/// what the large one misses (miniature simulation: Waldspurger, Saemundsson, Ahmad, Park, USENIX
/// ATC 2017). A rule is worth its hits less the price of its stores.
///
/// One thread at a time. Nothing throws but construction.
class PolicyRace {
 public:
  /// Slots of a simulated tier: a few thousand samples give miss ratios to about a point
  /// (Waldspurger, Park, Garthwaite, Ahmad, FAST 2015). All rules together stay below 1 MiB,
  /// however large the tier is.
  static constexpr std::uint32_t kMaxShadowSlots = 2048;
  /// What a store costs, in hits: bytes over the link against the prefill that a hit saves. A block
  /// of 16 tokens is 1.3 to 2 MiB per GPU, 25 to 40 us of a link of 50 GB/s, and 0.6 to 2 ms of
  /// prefill (8B on one H100 to 70B on four), so 1/15 to 1/80.
  static constexpr double kStorePrice = 1.0 / 32;
  /// Accesses after which a hit counts half, in tiers full: a rule shows its worth over a turnover,
  /// and the memory of two is short beside a phase of traffic.
  static constexpr double kHalfLifeTurnovers = 2;
  /// By how much another rule must be better: what two samples of one rule differ by.
  static constexpr double kMargin = 0.02;

  /// Starts with the last of `rules` (1 to 4; simulated only if there are several).
  explicit PolicyRace(std::span<const PolicyRule> rules, std::uint32_t max_slots);

  /// The tier has this many slots now: the simulated ones start again, the choice stays.
  void resize(std::uint32_t num_slots);
  /// The blocks of one request, or of a piece of it, hashed; last to first.
  void access(std::span<const std::uint64_t> hashes);

  [[nodiscard]] const PolicyRule& current() const { return rules_[current_]; }
  [[nodiscard]] std::uint64_t num_switches() const { return num_switches_; }
  [[nodiscard]] bool runs() const { return !shadows_.empty(); }

 private:
  void choose();

  std::vector<PolicyRule> rules_;
  std::vector<ShadowTier> shadows_;
  std::vector<double> scores_;
  std::size_t current_;
  double decay_ = 1;
  /// Keys whose mixed hash is at most this are sampled.
  std::uint64_t threshold_ = 0;
  std::uint32_t max_shadow_slots_;
  std::uint64_t num_switches_ = 0;
};

}  // namespace kvferry::cpu_tier
