// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/policy/eviction_policy.hpp"

#include "kvferry/base/check.hpp"

#include <algorithm>

namespace kvferry::cpu_tier {

EvictionPolicy::EvictionPolicy(const TierOptions& options, std::uint32_t max_slots)
    : race_(rules_of(options.eviction, options.admission), max_slots,
            row_of(options.eviction).make_memory == nullptr ? PolicyRace::Evicts::kByTheRule
                                                            : PolicyRace::Evicts::kByItsMemory),
      promises_(options.max_promised_share, max_slots) {
  if (race_.runs() || options.admission != Admission::kAlways) {
    history_.emplace(std::uint64_t{max_slots} * OfferHistory::kPerSlot);
  }
  if (const auto make_memory = row_of(options.eviction).make_memory; make_memory != nullptr) {
    memory_ = make_memory(max_slots);
  }
}

void EvictionPolicy::resize(std::uint32_t num_slots) {
  race_.resize(num_slots);
  if (memory_) memory_->resize(num_slots);
  promises_.resize(num_slots);
}

void EvictionPolicy::place(std::span<const std::uint64_t> hashes, std::span<Placement> placements,
                           Segment before) {
  KVFERRY_CHECK(hashes.size() == placements.size(), "place() with spans of different lengths");
  if (history_) {
    for (const std::uint64_t hash : hashes) history_->prefetch(hash);
  }
  // If a block was offered before, so were the blocks before it, even if they are not remembered.
  Placement after;
  for (std::size_t i = hashes.size(); i-- > 0;) {
    const std::uint32_t num_offers = this->num_offers(hashes[i]);
    const bool is_known =
        memory_ ? memory_->take(hashes[i]) == Segment::kProtected : num_offers > 1;
    if (is_known) after.segment = Segment::kProtected;
    after.heat = std::max(after.heat, static_cast<std::uint8_t>(num_offers));
    placements[i] = after;
    if (before == Segment::kProbation) placements[i].segment = Segment::kProbation;
  }
}

}  // namespace kvferry::cpu_tier
