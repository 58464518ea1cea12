// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/policy/policy_race.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace kvferry::cpu_tier {
namespace {

/// Bits that depend on all of `hash` and resemble none of those that tables are indexed by: a
/// sample must not be the keys of one part of a table.
std::uint64_t sampled_bits(std::uint64_t hash) {
  hash = (hash ^ (hash >> 32)) * 0xd6e8feb86659fd93ULL;  // rrmxmx-like finaliser (Evensen 2018).
  return hash ^ (hash >> 32);
}

}  // namespace

PolicyRace::PolicyRace(std::span<const PolicyRule> rules, std::uint32_t max_slots)
    : rules_(rules.begin(), rules.end()),
      current_(rules.size() - 1),
      max_shadow_slots_(std::clamp<std::uint32_t>(max_slots, 1, kMaxShadowSlots)) {
  if (rules_.size() == 1) return;
  shadows_.reserve(rules_.size());
  for (const PolicyRule& rule : rules_) shadows_.emplace_back(rule, max_shadow_slots_);
  scores_.assign(rules_.size(), 0);
  resize(max_slots);
}

void PolicyRace::resize(std::uint32_t num_slots) {
  const std::uint32_t num_shadow_slots = std::clamp<std::uint32_t>(num_slots, 1, max_shadow_slots_);
  for (ShadowTier& shadow : shadows_) shadow.restart(num_shadow_slots);
  threshold_ = num_slots <= num_shadow_slots
                   ? std::numeric_limits<std::uint64_t>::max()
                   : std::numeric_limits<std::uint64_t>::max() / num_slots * num_shadow_slots;
  decay_ = std::exp2(-1.0 / (kHalfLifeTurnovers * num_shadow_slots));
}

void PolicyRace::access(std::span<const std::uint64_t> hashes) {
  if (!runs()) return;
  bool sampled = false;
  for (const std::uint64_t hash : hashes) {
    const std::uint64_t bits = sampled_bits(hash);
    if (bits > threshold_) continue;
    sampled = true;
    for (std::size_t i = 0; i < shadows_.size(); ++i) {
      scores_[i] *= decay_;
      switch (shadows_[i].access(hash)) {
        case ShadowTier::Outcome::kHit:
          scores_[i] += 1;
          break;
        case ShadowTier::Outcome::kStored:
          scores_[i] -= kStorePrice;
          break;
        case ShadowTier::Outcome::kDeclined:
          break;
      }
    }
  }
  if (sampled) choose();
}

void PolicyRace::choose() {
  const auto best =
      static_cast<std::size_t>(std::max_element(scores_.begin(), scores_.end()) - scores_.begin());
  if (scores_[best] <= scores_[current_] + kMargin * std::abs(scores_[current_])) return;
  current_ = best;
  ++num_switches_;
}

}  // namespace kvferry::cpu_tier
