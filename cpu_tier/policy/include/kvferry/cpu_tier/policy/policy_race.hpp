// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/cpu_tier/policy/policy_rule.hpp"
#include "kvferry/cpu_tier/policy/shadow_tier.hpp"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

namespace kvferry::cpu_tier {

/// Chooses the rule of an adaptive tier, so that the tier loads at least what LRU would load. Every
/// rule is simulated on a sample of the keys, with the same share of the keys and of the slots, so
/// a small tier misses what the large one misses (miniature simulation: Waldspurger, Saemundsson,
/// Ahmad, Park, USENIX ATC 2017). No rule leaves holes in a prefix, so the sampled blocks before a
/// sampled block show whether it can be loaded.
///
/// LRU is in force until another rule, a *rival*, passes two tests. First, it has won enough in its
/// simulation since it was last behind LRU (kRisk). Second, the tier's account can pay what it
/// would cost to follow the rival wrongly (kTail). Both tests use the number of blocks that LRU
/// would have and the rival does not have: when the traffic changes, each of these is missed once.
/// The account holds what the tier has loaded more (or less) than LRU's simulation, plus one load
/// for every kAccessesPerCredit accesses. So losses against LRU are limited to earlier wins, plus a
/// small share of all accesses.
///
/// A sample differs from all keys by chance. At the edge of a loop as long as the tier, a tier that
/// is smaller by a hundredth loads nothing, and a larger one everything. So while the tier itself
/// follows LRU, a rival has to win against what the tier loads, too.
///
/// A rival that loses kMaxLoss, in its simulation or in what the tier itself could load, is given
/// up. Then the wins of all rivals start again from zero.
///
/// Used by one thread at a time. Only construction throws.
class PolicyRace {
 public:
  /// Most slots of a simulated tier. A few thousand samples give miss ratios to about a point
  /// (Waldspurger, Park, Garthwaite, Ahmad, FAST 2015). All rules together take less than 512 KiB,
  /// for a tier of any size.
  static constexpr std::uint32_t kMaxShadowSlots = 2048;
  /// The cost of a store, in loads: its time on the link, compared with the prefill that a load
  /// saves. A block of 16 tokens has 1.3 to 2 MiB per GPU, which take 25 to 40 us on a link of
  /// 50 GB/s. It saves 0.6 to 2 ms of prefill (8B on one H100 to 70B on four). That is 1/15 to
  /// 1/80.
  static constexpr double kStorePrice = 1.0 / 32;
  // The constants below were chosen on random mixtures of traffic (docs/decisions/policies.md).
  /// A rival has to win this share of the blocks that LRU would have and the rival does not have.
  static constexpr double kRisk = 0.2;
  /// The account has to hold this share of those blocks, if the rival has none of LRU's blocks. If
  /// it has some, the share is smaller in proportion. It is less than 1 because a loss is noticed
  /// before all of the blocks are missed.
  static constexpr double kTail = 0.4;
  static constexpr double kAccessesPerCredit = 256;
  /// A rival has to win at least this share of the slots, plus kChance loads. Otherwise a tier of a
  /// few blocks would follow chance.
  static constexpr double kMinWin = 0.005;
  static constexpr double kChance = 10;
  /// A rival that is followed can lose this share of the slots, plus kChance loads.
  static constexpr double kMaxLoss = 0.03;
  /// Two rivals are compared over recent accesses, with this half-life in turnovers of the tier,
  /// but at least kMinHalfLife accesses.
  static constexpr double kHalfLifeTurnovers = 2;
  static constexpr double kMinHalfLife = 8192;
  /// Another rival must be better by this share of these accesses, plus kMinWin of the slots.
  static constexpr double kMargin = 0.005;

  enum class Evicts : std::uint8_t {
    kByTheRule,   ///< The tier evicts by the rule in force, so it shows what LRU loads.
    kByItsMemory  ///< The rule decides only on admission (EvictionMemory).
  };
  /// Starts with the last of `rules`, against which the others are measured. There are 1 to 4
  /// rules; a single rule is not simulated.
  explicit PolicyRace(std::span<const PolicyRule> rules, std::uint32_t max_slots,
                      Evicts evicts = Evicts::kByTheRule);

  /// The tier has this many slots now. The simulated tiers start again; the choice stays.
  void resize(std::uint32_t num_slots);

  enum class Presence : std::uint8_t { kAbsent, kHeld };
  /// One block of an offer, and whether the tier holds it. Call it for each block, from the last to
  /// the first.
  void offered(std::uint64_t hash, Presence presence) {
    if (!runs() || sampled_bits(hash) > threshold_) return;
    if (num_sampled_ == sample_.size()) {
      num_sampled_ = 0;
      is_overlong_ = true;
    }
    held_[num_sampled_] = presence == Presence::kHeld;
    sample_[num_sampled_++] = hash;
  }
  /// Call it after the last block of an offer.
  void end_offer();

  [[nodiscard]] const PolicyRule& current() const { return racers_[current_].rule; }
  [[nodiscard]] std::uint64_t num_switches() const { return num_switches_; }
  [[nodiscard]] bool runs() const { return !shadows_.empty(); }

 private:
  /// A rule, and its wins against the last rule, in loads.
  struct Racer {
    PolicyRule rule;
    double recent_loads = 0;
    double recent_worth = 0;  ///< The same, including the price of stores.
    double won = 0;           ///< Since it was last behind.
    /// Blocks that LRU's simulation had and its own did not have; unset: not counted recently.
    std::optional<std::uint32_t> num_else = std::nullopt;
  };

  /// Bits that depend on all of `hash`, and are unlike the bits that index tables: the sample must
  /// not consist of the keys of one part of a table.
  [[nodiscard]] static std::uint64_t sampled_bits(std::uint64_t hash) {
    hash = (hash ^ (hash >> 32)) * 0xd6e8feb86659fd93ULL;  // rrmxmx-like (Evensen 2018).
    return hash ^ (hash >> 32);
  }
  [[nodiscard]] std::size_t reference() const { return racers_.size() - 1; }
  /// Simulates the sample in all tiers.
  void count_wins();
  /// Whether the tier holds what LRU holds: it has followed LRU for a turnover.
  [[nodiscard]] bool is_lru_for_a_turnover() const {
    return evicts_ == Evicts::kByTheRule && current_ == reference() &&
           num_stores_of_lru_ >= num_shadow_slots_;
  }
  /// Whether a rival passes both tests.
  [[nodiscard]] bool is_safe(Racer& racer, const ShadowTier& shadow);
  [[nodiscard]] std::size_t best_rival();
  void choose();
  void follow(std::size_t racer);
  [[nodiscard]] double share_of_slots(double share) const { return share * num_shadow_slots_; }

  Evicts evicts_;
  std::vector<Racer> racers_;
  std::vector<ShadowTier> shadows_;
  std::size_t current_;
  std::uint64_t num_switches_ = 0;
  /// Keys whose mixed hash is at most this are sampled.
  std::uint64_t threshold_ = 0;
  std::uint32_t max_shadow_slots_;
  std::uint32_t num_shadow_slots_ = 0;
  double half_life_ = 1;
  double num_recent_ = 0;  ///< Number of accesses, of which older ones count less.
  /// The most that the rule in force had won in its simulation since it came into force, and what
  /// the tier itself has lost against LRU's simulation since then.
  double most_won_ = 0;
  double tier_lost_ = 0;
  double balance_ = 0;  ///< The account.
  /// Stores of LRU's simulation since the rule in force came into force; infinite if that has been
  /// in force from the beginning.
  double num_stores_of_lru_ = std::numeric_limits<double>::infinity();
  /// Sampled accesses since the racers' num_else were last reset.
  std::uint32_t num_since_counted_ = 0;
  // The sampled blocks of the offer: as many as a simulated tier has slots, the first ones of the
  // prompt. More cannot be loaded together.
  std::vector<std::uint64_t> sample_;
  std::vector<std::uint8_t> held_;
  std::size_t num_sampled_ = 0;
  bool is_overlong_ = false;  ///< Others came before them, and the sample begins in its middle.
};

}  // namespace kvferry::cpu_tier
