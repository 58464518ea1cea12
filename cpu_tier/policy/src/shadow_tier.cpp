// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/policy/shadow_tier.hpp"

#include "kvferry/base/check.hpp"

#include <algorithm>

namespace kvferry::cpu_tier {
namespace {

/// A later stamp, also when the counter has wrapped.
bool older(std::uint32_t stamp, std::uint32_t than) {
  return static_cast<std::int32_t>(stamp - than) < 0;
}

}  // namespace

ShadowTier::ShadowTier(const PolicyRule& rule, std::uint32_t max_slots)
    : rule_(rule),
      num_slots_(max_slots),
      blocks_(max_slots),
      history_(std::uint64_t{max_slots} * OfferHistory::kPerSlot) {}

void ShadowTier::restart(std::uint32_t num_slots) {
  KVFERRY_CHECK(num_slots > 0, "a simulated tier without slots");
  num_slots_ = num_slots;
  blocks_.clear();
  history_.clear();
}

ShadowTier::Outcome ShadowTier::access(std::uint64_t hash) {
  ++now_;
  // Not the bits that the history tells its buckets by, which would fill some chains only.
  const auto id = static_cast<std::uint32_t>(hash);
  std::uint32_t entry = blocks_.find(id);
  if (entry != HashedLists::kNone) {
    blocks_.make_hottest(entry, kProtected);
    blocks_[entry].heat =
        static_cast<std::uint8_t>(std::min<std::uint32_t>(blocks_[entry].heat + 1U, kMaxHeat));
    blocks_[entry].stamp = now_;
    return Outcome::kHit;
  }
  const std::uint32_t num_offers = history_.count_offer(hash);
  if (blocks_.size() == num_slots_ && !make_room(num_offers)) return Outcome::kDeclined;
  entry = blocks_.insert(id, num_offers > 1 ? kProtected : kProbation);
  blocks_[entry].heat = static_cast<std::uint8_t>(num_offers);
  blocks_[entry].stamp = now_;
  return Outcome::kStored;
}

std::size_t ShadowTier::victim_list() {
  if (blocks_.size(kProbation) == 0) return kProtected;
  if (blocks_.size(kProtected) == 0) return kProbation;
  if (rule_.victims.from == VictimRule::From::kOldest) {
    return older(blocks_[blocks_.coldest(kProtected)].stamp,
                 blocks_[blocks_.coldest(kProbation)].stamp)
               ? kProtected
               : kProbation;
  }
  return static_cast<float>(blocks_.size(kProbation)) >
                 rule_.victims.probation_share * static_cast<float>(num_slots_)
             ? kProbation
             : kProtected;
}

bool ShadowTier::make_room(std::uint32_t num_offers) {
  if (rule_.admission != AdmissionRule::kAll && num_offers < 2) return false;
  const std::size_t list = victim_list();
  const std::uint32_t victim = blocks_.coldest(list);
  if (rule_.admission == AdmissionRule::kHotterThanVictim && blocks_[victim].heat >= num_offers) {
    --blocks_[victim].heat;
    blocks_[victim].stamp = now_;
    blocks_.make_hottest(victim, list);
    return false;
  }
  blocks_.erase(victim);
  return true;
}

}  // namespace kvferry::cpu_tier
