// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/policy/shadow_tier.hpp"

#include "kvferry/base/check.hpp"

#include <algorithm>

namespace kvferry::cpu_tier {
namespace {

/// Whether `stamp` is earlier than `than`, even if the counter has wrapped between them.
bool older(std::uint32_t stamp, std::uint32_t than) {
  return static_cast<std::int32_t>(stamp - than) < 0;
}

/// Not the bits by which the history chooses its buckets; those would fill only some chains.
std::uint32_t id_of(std::uint64_t hash) { return static_cast<std::uint32_t>(hash); }

}  // namespace

ShadowTier::ShadowTier(const PolicyRule& rule, std::uint32_t max_slots)
    : rule_(rule),
      num_slots_(max_slots),
      entries_(max_slots),
      offers_(max_slots),
      blocks_(max_slots) {
  if (!rule.is_plain_lru()) history_.emplace(std::uint64_t{max_slots} * OfferHistory::kPerSlot);
}

void ShadowTier::restart(std::uint32_t num_slots) {
  KVFERRY_CHECK(num_slots > 0, "a simulated tier without slots");
  num_slots_ = num_slots;
  blocks_.clear();
  if (history_) history_->clear();
}

ShadowTier::Outcome ShadowTier::offer(std::span<const std::uint64_t> hashes) {
  KVFERRY_CHECK(hashes.size() <= entries_.size(), "more blocks are offered than can be held");
  const std::span<std::uint32_t> entries(entries_);
  std::uint32_t num_absent = 0;
  for (std::size_t i = 0; i < hashes.size(); ++i) {
    entries[i] = blocks_.find(id_of(hashes[i]));
    num_absent += entries[i] == HashedLists::kNone ? 1 : 0;
  }
  Outcome outcome;
  outcome.num_held = static_cast<std::uint32_t>(hashes.size()) - num_absent;
  for (std::size_t i = hashes.size(); i-- > 0 && entries[i] != HashedLists::kNone;) {
    ++outcome.num_loads;
  }
  for (std::size_t i = 0; i < hashes.size(); ++i) {
    if (entries[i] != HashedLists::kNone) touch(entries[i]);
  }
  if (num_absent == 0) return outcome;
  const std::uint32_t num_free = num_slots_ - blocks_.size();
  const std::uint32_t num_admitted = count_admitted(hashes);
  outcome.num_stores = std::min({std::max(num_admitted, std::min(num_free, num_absent)),
                                 // More would evict the blocks before them.
                                 num_slots_ - std::min(num_slots_, outcome.num_loads)});
  evict(outcome.num_stores - std::min(outcome.num_stores, num_free));
  store(hashes, outcome.num_stores);
  return outcome;
}

void ShadowTier::touch(std::uint32_t entry) {
  HashedLists::Entry& touched = blocks_[entry];
  touched.heat = static_cast<std::uint8_t>(std::min<std::uint32_t>(touched.heat + 1U, kMaxHeat));
  touched.stamp = ++now_;
  blocks_.make_hottest(entry, kProtected);
}

std::uint32_t ShadowTier::count_admitted(std::span<const std::uint64_t> hashes) {
  std::uint32_t num_absent = 0;
  std::uint32_t num_admitted = 0;
  std::uint32_t num_offers = 1;  // The largest number of the block and those after it.
  const bool has_room = num_slots_ - blocks_.size() >= hashes.size();
  std::uint32_t victim = HashedLists::kNone;
  for (std::size_t i = 0; i < hashes.size(); ++i) {
    if (entries_[i] != HashedLists::kNone) continue;
    ++num_absent;
    if (history_) num_offers = history_->count_offer(hashes[i], num_offers);
    offers_[i] = static_cast<std::uint8_t>(num_offers);
    if (rule_.admission == AdmissionRule::kAll || has_room) continue;
    if (num_offers < 2) continue;
    if (rule_.admission == AdmissionRule::kHotterThanVictim) {
      if (victim == HashedLists::kNone && num_admitted == 0)
        victim = blocks_.coldest(victim_list());
      if (victim != HashedLists::kNone && blocks_[victim].heat >= num_offers) {
        --blocks_[victim].heat;
        continue;
      }
      if (victim != HashedLists::kNone) victim = blocks_.hotter_than(victim);
    }
    ++num_admitted;
  }
  return rule_.admission == AdmissionRule::kAll || has_room ? num_absent : num_admitted;
}

std::size_t ShadowTier::victim_list() const {
  if (blocks_.size(kProbation) == 0) return kProtected;
  if (blocks_.size(kProtected) == 0) return kProbation;
  const float allowed = rule_.victims.probation_share * static_cast<float>(num_slots_);
  if (rule_.victims.from == VictimRule::From::kProbationAbove &&
      static_cast<float>(blocks_.size(kProbation)) > allowed) {
    return kProbation;
  }
  return older(blocks_[blocks_.coldest(kProtected)].stamp,
               blocks_[blocks_.coldest(kProbation)].stamp)
             ? kProtected
             : kProbation;
}

void ShadowTier::evict(std::uint32_t count) {
  for (; count > 0; --count) blocks_.erase(blocks_.coldest(victim_list()));
}

void ShadowTier::store(std::span<const std::uint64_t> hashes, std::uint32_t count) {
  std::array<std::uint32_t, HashedLists::kNumLists> warmer{HashedLists::kNone, HashedLists::kNone};
  std::uint32_t stamp = ++now_;
  for (std::size_t i = hashes.size(); i-- > 0 && count > 0;) {
    if (entries_[i] != HashedLists::kNone) continue;
    if (i + 1 < hashes.size() && warmer[kProbation] == HashedLists::kNone &&
        warmer[kProtected] == HashedLists::kNone) {
      const std::uint32_t before = blocks_.find(id_of(hashes[i + 1]));
      if (before != HashedLists::kNone) {
        warmer[blocks_[before].list] = before;
        stamp = blocks_[before].stamp;
      }
    }
    const std::size_t list = offers_[i] > 1 ? kProtected : kProbation;
    const std::uint32_t entry = blocks_.insert(id_of(hashes[i]), list, warmer[list]);
    blocks_[entry].heat = offers_[i];
    blocks_[entry].stamp = stamp;
    warmer[list] = entry;
    --count;
  }
}

std::uint32_t ShadowTier::num_missing_of(const ShadowTier& other) const {
  std::uint32_t num_missing = 0;
  for (std::size_t list = 0; list < HashedLists::kNumLists; ++list) {
    if (other.blocks_.size(list) == 0) continue;
    for (std::uint32_t entry = other.blocks_.coldest(list); entry != HashedLists::kNone;
         entry = other.blocks_.hotter_than(entry)) {
      num_missing += blocks_.find(other.blocks_[entry].hash) == HashedLists::kNone ? 1 : 0;
    }
  }
  return num_missing;
}

}  // namespace kvferry::cpu_tier
