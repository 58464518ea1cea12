// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/policy/policy_race.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace kvferry::cpu_tier {

PolicyRace::PolicyRace(std::span<const PolicyRule> rules, std::uint32_t max_slots, Evicts evicts)
    : evicts_(evicts),
      current_(rules.size() - 1),
      max_shadow_slots_(std::clamp<std::uint32_t>(max_slots, 1, kMaxShadowSlots)) {
  racers_.reserve(rules.size());
  for (const PolicyRule& rule : rules) racers_.push_back({rule});
  if (rules.size() == 1) return;
  sample_.resize(max_shadow_slots_);
  held_.resize(max_shadow_slots_);
  shadows_.reserve(rules.size());
  for (const PolicyRule& rule : rules) shadows_.emplace_back(rule, max_shadow_slots_);
  resize(max_slots);
}

void PolicyRace::resize(std::uint32_t num_slots) {
  num_shadow_slots_ = std::clamp<std::uint32_t>(num_slots, 1, max_shadow_slots_);
  for (ShadowTier& shadow : shadows_) shadow.restart(num_shadow_slots_);
  threshold_ = num_slots <= num_shadow_slots_
                   ? std::numeric_limits<std::uint64_t>::max()
                   : std::numeric_limits<std::uint64_t>::max() / num_slots * num_shadow_slots_;
  half_life_ = std::max(share_of_slots(kHalfLifeTurnovers), kMinHalfLife);
}

void PolicyRace::end_offer() {
  if (num_sampled_ == 0) return;
  if (std::exchange(is_overlong_, false)) {
    const auto first = static_cast<std::ptrdiff_t>(num_sampled_);
    std::rotate(sample_.begin(), sample_.begin() + first, sample_.end());
    std::rotate(held_.begin(), held_.begin() + first, held_.end());
    num_sampled_ = sample_.size();
  }
  count_wins();
  choose();
  num_sampled_ = 0;
}

void PolicyRace::count_wins() {
  const std::span<const std::uint64_t> sample(sample_.data(), num_sampled_);
  const auto count = static_cast<double>(num_sampled_);
  const double decay = std::exp2(-count / half_life_);
  num_recent_ = num_recent_ * decay + count;
  num_since_counted_ += static_cast<std::uint32_t>(num_sampled_);
  double num_loads = 0;  // Of the tier.
  while (num_loads < count && held_[num_sampled_ - 1 - static_cast<std::size_t>(num_loads)] != 0) {
    ++num_loads;
  }
  const ShadowTier::Outcome of_lru = shadows_[reference()].offer(sample);
  num_stores_of_lru_ += of_lru.num_stores;
  const bool is_lru = is_lru_for_a_turnover();
  const double num_to_beat =
      is_lru ? std::max<double>(num_loads, of_lru.num_loads) : of_lru.num_loads;
  for (std::size_t i = 0; i < reference(); ++i) {
    const ShadowTier::Outcome outcome = shadows_[i].offer(sample);
    const double loads = outcome.num_loads - num_to_beat;
    const double stores = static_cast<double>(outcome.num_stores) - of_lru.num_stores;
    const double worth = loads - kStorePrice * stores;
    Racer& racer = racers_[i];
    racer.recent_loads = racer.recent_loads * decay + loads;
    racer.recent_worth = racer.recent_worth * decay + worth;
    // Old wins are no reason to follow a rule that loses now.
    racer.won = std::clamp(racer.won + worth, 0.0, share_of_slots(1) + 4 * kChance);
  }
  balance_ += count / kAccessesPerCredit;
  if (is_lru) return;
  balance_ += num_loads - of_lru.num_loads;
  tier_lost_ = std::max(0.0, tier_lost_ + of_lru.num_loads - num_loads);
}

bool PolicyRace::is_safe(Racer& racer, const ShadowTier& shadow) {
  if (racer.won < share_of_slots(kMinWin) + kChance) return false;
  if (!racer.num_else) racer.num_else = shadow.num_missing_of(shadows_[reference()]);
  const double num_else = *racer.num_else;
  return racer.won >= kRisk * num_else &&
         balance_ >= kTail * num_else * num_else / num_shadow_slots_;
}

std::size_t PolicyRace::best_rival() {
  // Counting num_else walks the simulated tiers, which takes as long as some hundred accesses.
  if (num_since_counted_ >= num_shadow_slots_ / 4) {
    num_since_counted_ = 0;
    for (std::size_t i = 0; i < reference(); ++i) racers_[i].num_else.reset();
  }
  std::size_t best = reference();
  for (std::size_t i = 0; i < reference(); ++i) {
    Racer& racer = racers_[i];
    const double most = best == reference() ? 0 : racers_[best].recent_worth;
    if (racer.recent_worth <= most || racer.recent_loads < 0) continue;
    if (i == current_ || is_safe(racer, shadows_[i])) best = i;
  }
  return best;
}

void PolicyRace::choose() {
  if (current_ == reference()) {
    follow(best_rival());
    return;
  }
  Racer& followed = racers_[current_];
  most_won_ = std::max(most_won_, followed.won);
  const double max_loss = share_of_slots(kMaxLoss) + kChance;
  if (most_won_ - followed.won > max_loss || tier_lost_ > max_loss) {
    // The other rivals won on the same traffic, and would lose in the same way.
    for (Racer& racer : racers_) racer.won = 0;
    follow(reference());
    return;
  }
  const std::size_t best = best_rival();
  const double margin = kMargin * num_recent_ + share_of_slots(kMinWin);
  if (best != reference() && racers_[best].recent_worth > followed.recent_worth + margin) {
    follow(best);
  }
}

void PolicyRace::follow(std::size_t racer) {
  if (racer == current_) return;
  current_ = racer;
  ++num_switches_;
  most_won_ = racers_[racer].won;
  tier_lost_ = 0;
  num_stores_of_lru_ = 0;
}

}  // namespace kvferry::cpu_tier
