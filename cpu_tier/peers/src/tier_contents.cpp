// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/peers/tier_contents.hpp"

#include "kvferry/cpu_tier/peers/slot_word.hpp"

namespace kvferry::cpu_tier {

TierContents::TierContents(const TierRecords& records)
    : records_(records), seen_(records.shape().num_chunks), name_space_(records.name_space()) {}

std::vector<ContentChange> TierContents::take_changes(std::size_t most, WeightsId weights) {
  std::vector<ContentChange> changes;
  if (name_space_ != records_.name_space() || weights_ != weights) {
    name_space_ = records_.name_space();
    weights_ = weights;
    // Every key is read again.
    for (std::vector<Seen>& chunk : seen_) {
      for (Seen& seen : chunk) seen.stamp = 0;
    }
  }
  for (std::size_t i = 0; i < seen_.size() && changes.size() < most; ++i) {
    look_at(next_, changes);
    next_ = next_.value() + 1 < seen_.size() ? next_.next() : ChunkId();
  }
  return changes;
}

void TierContents::look_at(ChunkId chunk, std::vector<ContentChange>& changes) {
  std::vector<Seen>& seen = seen_[chunk.value()];
  const bool can_load = chunk.value() < records_.reach() && records_.is_of_name_space(chunk);
  const std::uint32_t num_slots = can_load ? records_.shape_of(chunk).num_slots : 0;
  for (std::uint32_t i = num_slots; i < seen.size(); ++i) {
    replace({chunk, i}, seen[i], {}, changes);
  }
  seen.resize(num_slots);
  for (std::uint32_t i = 0; i < num_slots; ++i) look_at({chunk, i}, seen[i], changes);
}

void TierContents::look_at(SlotPlace place, Seen& seen, std::vector<ContentChange>& changes) const {
  const SlotWord word = records_.slot(place).load();
  const bool is_readable = word.can_be_read();
  const std::uint32_t stamp = is_readable ? word.generation() << 1U | 1U : 0;
  if (stamp == seen.stamp && (is_readable || seen.key.hash_bytes == 0)) return;
  // The slot may hold another key by now. In that case its word is different at the next look.
  const auto key = is_readable ? records_.key_of(place) : std::nullopt;
  const bool is_there = key && key->is_of(weights_);
  replace(place, seen, is_there ? key->mixed_with(weights_) : BlockKey(), changes);
  seen.stamp = key ? stamp : 0;
}

void TierContents::replace(SlotPlace place, Seen& seen, const BlockKey& key,
                           std::vector<ContentChange>& changes) const {
  if (key == seen.key) return;
  const std::uint64_t slot = records_.number_of(place);
  if (seen.key.hash_bytes != 0) changes.push_back({seen.key, slot, false});
  if (key.hash_bytes != 0) changes.push_back({key, slot, true});
  seen.key = key;
}

}  // namespace kvferry::cpu_tier
