// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/cpu_tier/policy/policy_rule.hpp"
#include "kvferry/cpu_tier/policy/shadow_tier.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace kvferry::cpu_tier {

/// Chooses the rule of an adaptive tier, so that it loads what LRU would, or more. Every rule is
/// simulated on a sample of the keys: the same share of the keys and of the slots, so that a small
/// tier misses what the large one misses (miniature simulation: Waldspurger, Saemundsson, Ahmad,
/// Park, USENIX ATC 2017). No rule leaves holes in a prefix, so the sampled blocks before a
/// sampled one say whether it can be loaded.
///
/// LRU is in force until another rule, a *rival*, passes two tests. It has won enough in its
/// simulation since it was behind LRU the last time (kRisk). And the tier's account can pay what
/// following it wrongly may cost (kTail). Both go by the blocks that LRU would have and the rival
/// has not: when the traffic changes, these are missed, each once. The account has what the tier
/// has loaded more than LRU's simulation, or less, and kAccessesPerCredit-ths of the accesses. So
/// what is lost against LRU is what was won against it, or a small share of all.
///
/// A rival that loses kMaxLoss, in its simulation or in what the tier itself could load, is given
/// up, and all of them begin to win from nothing.
///
/// One thread at a time. Nothing throws but construction.
class PolicyRace {
 public:
  /// Slots of a simulated tier: a few thousand samples give miss ratios to about a point
  /// (Waldspurger, Park, Garthwaite, Ahmad, FAST 2015). All rules together stay below 512 KiB,
  /// however large the tier is.
  static constexpr std::uint32_t kMaxShadowSlots = 2048;
  /// What a store costs, in loads: bytes over the link against the prefill that a load saves. A
  /// block of 16 tokens is 1.3 to 2 MiB per GPU, 25 to 40 us of a link of 50 GB/s, and 0.6 to 2 ms
  /// of prefill (8B on one H100 to 70B on four), so 1/15 to 1/80.
  static constexpr double kStorePrice = 1.0 / 32;
  // The constants below were chosen on random mixtures of traffic (docs/decisions/policies.md).
  /// What a rival has to win: a share of the blocks that LRU would have and it has not.
  static constexpr double kRisk = 0.2;
  /// What the account has to have: such a share of them for a rival that has none of LRU's blocks,
  /// and less for one that has some, in proportion. It is seen to lose before all of them matter.
  static constexpr double kTail = 0.4;
  static constexpr double kAccessesPerCredit = 256;
  /// What a rival has to win at least: a share of the slots; and some loads, or a tier of a few
  /// blocks would follow chance.
  static constexpr double kMinWin = 0.005;
  static constexpr double kChance = 10;
  /// What a rival that is followed may lose, of the slots; and kChance.
  static constexpr double kMaxLoss = 0.03;
  /// Which of two rivals is better is judged over so many tiers full of accesses, or this many
  /// accesses if that is more: at the end of it they count half.
  static constexpr double kHalfLifeTurnovers = 2;
  static constexpr double kMinHalfLife = 8192;
  /// By how much of these accesses another rival must be better, and by kMinWin.
  static constexpr double kMargin = 0.005;

  /// Starts with the last of `rules` (1 to 4; simulated only if there are several), by which the
  /// others are measured.
  explicit PolicyRace(std::span<const PolicyRule> rules, std::uint32_t max_slots);

  /// The tier has this many slots now: the simulated ones start again, the choice stays.
  void resize(std::uint32_t num_slots);

  enum class Presence : std::uint8_t { kAbsent, kHeld };
  /// A block of an offer, from the last to the first, and whether the tier holds it.
  void offered(std::uint64_t hash, Presence presence) {
    if (!runs() || sampled_bits(hash) > threshold_) return;
    if (num_sampled_ == sample_.size()) end_offer();
    held_[num_sampled_] = presence == Presence::kHeld;
    sample_[num_sampled_++] = hash;
  }
  /// That were all blocks of the offer.
  void end_offer();

  [[nodiscard]] const PolicyRule& current() const { return racers_[current_].rule; }
  [[nodiscard]] std::uint64_t num_switches() const { return num_switches_; }
  [[nodiscard]] bool runs() const { return !shadows_.empty(); }

 private:
  /// A rule, and what it has won against the last one. Wins are in loads.
  struct Racer {
    PolicyRule rule;
    double recent_loads = 0;
    double recent_worth = 0;  ///< With the price of stores.
    double won = 0;           ///< Since it was behind.
    /// Blocks that LRU's simulation had and its own had not, if they were counted lately.
    std::optional<std::uint32_t> num_else = std::nullopt;
  };

  /// Bits that depend on all of `hash` and resemble none of those that tables are indexed by: a
  /// sample must not be the keys of one part of a table.
  [[nodiscard]] static std::uint64_t sampled_bits(std::uint64_t hash) {
    hash = (hash ^ (hash >> 32)) * 0xd6e8feb86659fd93ULL;  // rrmxmx-like (Evensen 2018).
    return hash ^ (hash >> 32);
  }
  [[nodiscard]] std::size_t reference() const { return racers_.size() - 1; }
  /// Simulates the sample in all tiers.
  void count_wins();
  /// Whether a rival passes both tests.
  [[nodiscard]] bool is_safe(Racer& racer, const ShadowTier& shadow);
  [[nodiscard]] std::size_t best_rival();
  void choose();
  void follow(std::size_t racer);
  [[nodiscard]] double share_of_slots(double share) const { return share * num_shadow_slots_; }

  std::vector<Racer> racers_;
  std::vector<ShadowTier> shadows_;
  std::size_t current_;
  std::uint64_t num_switches_ = 0;
  /// Keys whose mixed hash is at most this are sampled.
  std::uint64_t threshold_ = 0;
  std::uint32_t max_shadow_slots_;
  std::uint32_t num_shadow_slots_ = 0;
  double half_life_ = 1;
  double num_recent_ = 0;  ///< Accesses, as recent ones count.
  /// What the rule in force had won at most since it is, in its simulation, and what it has lost of
  /// that; and the same for the tier itself.
  double most_won_ = 0;
  double tier_lost_ = 0;
  double balance_ = 0;  ///< The account.
  /// Sampled accesses since what was counted of num_else was forgotten.
  std::uint32_t num_since_counted_ = 0;
  // The sampled blocks of the offer.
  std::array<std::uint64_t, ShadowTier::kMaxOffer> sample_{};
  std::array<bool, ShadowTier::kMaxOffer> held_{};
  std::size_t num_sampled_ = 0;
};

}  // namespace kvferry::cpu_tier
