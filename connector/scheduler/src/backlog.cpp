// SPDX-License-Identifier: Apache-2.0
#include "backlog.hpp"

namespace kvferry::connector {

void Backlog::push(BlockId block, const cpu_tier::BlockKey& key) {
  Place& place = places_.at(block.value());
  keys_[block.value()] = key;
  if (place == Place::kQueued) return;
  // A dropped entry's place in the queue is used again, so there is never more than one per block.
  if (place == Place::kNone) queue_.push_back(block);
  place = Place::kQueued;
  ++num_entries_;
}

void Backlog::push_front(const BacklogEntry& entry) {
  Place& place = places_.at(entry.block.value());
  if (place == Place::kQueued) return;  // It was offered again meanwhile, under its present key.
  keys_[entry.block.value()] = entry.key;
  if (place == Place::kNone) queue_.push_front(entry.block);
  place = Place::kQueued;
  ++num_entries_;
}

bool Backlog::drop(BlockId block) {
  Place& place = places_.at(block.value());
  if (place != Place::kQueued) return false;
  place = Place::kDropped;
  --num_entries_;
  return true;
}

std::optional<BacklogEntry> Backlog::pop() {
  while (!queue_.empty()) {
    const BlockId block = queue_.front();
    queue_.pop_front();
    Place& place = places_[block.value()];
    const bool wanted = place == Place::kQueued;
    place = Place::kNone;
    if (!wanted) continue;
    --num_entries_;
    return BacklogEntry{block, keys_[block.value()]};
  }
  return std::nullopt;
}

void Backlog::clear() {
  for (const BlockId block : queue_) places_[block.value()] = Place::kNone;
  queue_.clear();
  num_entries_ = 0;
}

}  // namespace kvferry::connector
