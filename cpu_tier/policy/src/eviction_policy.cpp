// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/policy/eviction_policy.hpp"

#include "kvferry/base/check.hpp"

#include <vector>

namespace kvferry::cpu_tier {
namespace {

/// The rules that the options leave to choose from; the one to begin with last.
std::vector<PolicyRule> rules_of(const TierOptions& options) {
  const bool adapts = options.eviction == Eviction::kAdaptive;
  switch (options.admission) {
    case Admission::kAlways:
      return adapts ? std::vector{kHalfRule, kLruRule} : std::vector{kLruRule};
    case Admission::kSecondOffer:
      return adapts ? std::vector{kFrequentRule, kSecondOfferRule} : std::vector{kSecondOfferRule};
    case Admission::kAdaptive:
      break;
  }
  return adapts ? std::vector{kFrequentRule, kSecondOfferRule, kHalfRule, kLruRule}
                : std::vector{kSecondOfferRule, kLruRule};
}

}  // namespace

EvictionPolicy::EvictionPolicy(const TierOptions& options, std::uint32_t max_slots)
    : race_(rules_of(options), max_slots) {
  if (race_.runs() || options.admission != Admission::kAlways) {
    history_.emplace(std::uint64_t{max_slots} * OfferHistory::kPerSlot);
  }
  if (options.eviction == Eviction::kArc) arc_.emplace(max_slots);
}

void EvictionPolicy::resize(std::uint32_t num_slots) {
  race_.resize(num_slots);
  if (arc_) arc_->resize(num_slots);
}

void EvictionPolicy::place(std::span<const std::uint64_t> hashes, std::span<Placement> placements) {
  KVFERRY_CHECK(hashes.size() == placements.size(), "place() with spans of different lengths");
  if (arc_) {
    for (std::size_t i = hashes.size(); i-- > 0;) placements[i].segment = arc_->take(hashes[i]);
    return;
  }
  if (!history_) return;
  for (const std::uint64_t hash : hashes) history_->prefetch(hash);
  for (std::size_t i = 0; i < hashes.size(); ++i) {
    const std::uint32_t num_offers = history_->num_offers(hashes[i]);
    if (num_offers < 2) continue;
    placements[i] = {Segment::kProtected, static_cast<std::uint8_t>(num_offers)};
  }
}

}  // namespace kvferry::cpu_tier
