// SPDX-License-Identifier: Apache-2.0
// The slots in a store: reserve, commit, abort.
#include "slot_class.hpp"

#include "kvferry/base/check.hpp"
#include "kvferry/base/error.hpp"

#include "batches.hpp"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

namespace kvferry::cpu_tier {
namespace {

float checked_share(float share) {
  if (share >= 0 && share <= 1) return share;
  throw ConfigError("max_awaited_share is " + std::to_string(share) +
                    "; it is a share of the tier, between 0 and 1");
}

}  // namespace

SlotClass::SlotClass(std::uint32_t max_slots, const TierOptions& options, Peers& peers,
                     const ChunkShape& shape)
    : index_(max_slots),
      policy_(options, max_slots),
      table_(max_slots, policy_.is_plain_lru() ? Segments::kOne : Segments::kTwo),
      peers_(peers.slots_of(shape, index_, max_slots)),
      notes_key_events_(options.key_events),
      notes_key_moves_(options.key_moves),
      max_awaited_share_(checked_share(options.max_awaited_share)) {}

SlotClass::~SlotClass() {
  const TierSnapshot now = snapshot();
  const std::uint32_t num_left =
      num_left_behind_ + (any_lease_left_ ? now.num_leased + now.num_dying : 0);
  KVFERRY_CHECK(now.num_free + now.num_evictable + now.num_set_aside + num_left == now.num_slots,
                "a tier is destroyed with " + std::to_string(now.num_writable) + " writable, " +
                    std::to_string(now.num_aborted) + " aborted, " +
                    std::to_string(now.num_leased) + " leased, " + std::to_string(now.num_dying) +
                    " dying, " + std::to_string(now.num_quarantined) +
                    " quarantined slots still taken");
}

std::optional<NotReserved> SlotClass::reserve(std::span<const BlockKey> keys,
                                              std::span<SlotId> slots) {
  const std::uint32_t num_free = table_.count(SlotState::kFree);
  const std::uint32_t num_available = num_free + table_.count(SlotState::kEvictable);
  if (keys.size() > num_available) {
    ++num_exhausted_total_;
    return NotReserved{num_available};
  }
  // This comes before the eviction, because a readable key must not be evicted to make room for
  // itself.
  index_.find(keys, slots);
  if (peers_->hide(slots)) ++eviction_epoch_;
  const auto present = std::find_if(slots.begin(), slots.end(),
                                    [](SlotId slot) { return slot != BlockIndex::kNoSlot; });
  if (present != slots.end()) {
    return NotReserved{static_cast<std::uint32_t>(keys.size()),
                       static_cast<std::size_t>(present - slots.begin())};
  }
  if (keys.size() > num_free) {
    ++eviction_epoch_;
    const std::span<SlotId> victims = slots.first(keys.size() - num_free);
    const std::size_t num_evicted = evict(victims);
    if (num_evicted < victims.size()) {
      peers_->abandon(victims.first(num_evicted));
      ++num_exhausted_total_;
      return NotReserved{table_.count(SlotState::kFree)};
    }
  }
  take(keys, slots);
  peers_->begin_fill(slots, std::min(num_free, static_cast<std::uint32_t>(slots.size())));
  num_reserved_total_ += slots.size();
  dcheck_conserved();
  return std::nullopt;
}

std::size_t SlotClass::evict(std::span<SlotId> victims) {
  // Every slot is looked at twice at most: a slot that a peer has used since the last look counts
  // once as just used.
  std::size_t num_left = 2 * std::size_t{table_.count(SlotState::kEvictable)};
  // Ghosts are compared with what is left on probation after all of the victims have left.
  const std::size_t step = policy_.wants_evicted() ? victims.size() : kStep;
  std::size_t num_evicted = 0;
  while (num_evicted < victims.size()) {
    const std::size_t size = std::min({victims.size() - num_evicted, step, num_left,
                                       std::size_t{table_.count(SlotState::kEvictable)}});
    if (size == 0) break;
    num_left -= size;
    const std::span<SlotId> coldest = victims.subspan(num_evicted, size);
    if (policy_.promises().is_used()) {
      evict_in_turn(coldest);
    } else {
      table_.evict(coldest, policy_.victims());
    }
    const std::size_t num_unused = peers_->refill_unused(coldest);
    for (const SlotId used : coldest.subspan(num_unused)) table_.make_evictable(used);
    mark_promised(coldest.subspan(num_unused));
    const std::span<const SlotId> evicted = coldest.first(num_unused);
    if (policy_.wants_evicted()) {
      for (const SlotId slot : evicted) {
        policy_.evicted(index_.key(slot).mixed(), table_.segment(slot),
                        table_.lists().num_linked(Segment::kProbation));
      }
    }
    note(evicted, MoveKind::kEvicted);
    index_.erase(evicted);
    num_evicted += num_unused;
  }
  num_evicted_total_ += num_evicted;
  return num_evicted;
}

void SlotClass::take(std::span<const BlockKey> keys, std::span<SlotId> slots) {
  std::array<std::uint64_t, kStep> hashes;
  Segment before = Segment::kProtected;
  for (std::size_t first = 0; first < keys.size(); first += kStep) {
    const std::size_t count = std::min(kStep, keys.size() - first);
    const std::span<SlotId> step = slots.subspan(first, count);
    for (std::size_t i = 0; i < count; ++i) hashes[i] = keys[first + i].mixed();
    if (policy_.is_plain_lru()) {
      table_.take(step);
    } else {
      std::array<Placement, kStep> placements;
      policy_.place(std::span(hashes).first(count), std::span(placements).first(count), before);
      before = placements[count - 1].segment;
      table_.take(step, std::span(placements).first(count));
    }
    index_.insert(keys.subspan(first, count), std::span(hashes).first(count), step);
  }
}

void SlotClass::give_back(std::span<const SlotId> slots) {
  peers_->abandon(slots);
  table_.free(slots, SlotState::kWritable);
  index_.erase(slots);
  dcheck_conserved();
}

void SlotClass::commit(std::span<const SlotId> slots, const std::optional<BlockKey>& predecessor) {
  SlotId before = BlockIndex::kNoSlot;
  if (predecessor) index_.find({&*predecessor, 1}, {&before, 1});
  if (before == BlockIndex::kNoSlot) {
    table_.commit(slots);
  } else {
    table_.commit(slots, before);
  }
  peers_->publish(slots, index_);
  note(slots, MoveKind::kCommitted);
  mark_promised(slots);
  num_committed_total_ += slots.size();
  dcheck_conserved();
}

void SlotClass::abort(std::span<const SlotId> slots) {
  table_.abort(slots);
  index_.erase(slots);
  dcheck_conserved();
}

void SlotClass::quarantine(std::span<const SlotId> slots) {
  table_.quarantine(slots);
  dcheck_conserved();
}

void SlotClass::release(std::span<const SlotId> slots, SlotState from) {
  peers_->abandon(slots);
  table_.free(slots, from);
  dcheck_conserved();
}

void SlotClass::leave_behind(std::span<const SlotId> slots, SlotState state) {
  if (state == SlotState::kQuarantined) {
    // For peers they do not change: they are being filled, and their chunks still belong to this
    // tier.
    num_left_behind_ += static_cast<std::uint32_t>(slots.size());
    return;
  }
  any_lease_left_ = any_lease_left_ || !slots.empty();
  for (const SlotId slot : slots) {
    if (table_.state(slot) == SlotState::kAbsent) peers_->leave_behind({&slot, 1});
  }
}

void SlotClass::note(std::span<const SlotId> slots, MoveKind kind) {
  if (notes_key_moves_ && kind != MoveKind::kCommitted) {
    for (const SlotId slot : slots) {
      if (key_moves_.size() == TierMoves::kMost) break;
      key_moves_.push_back({index_.key(slot).mixed(), slot, kind});
    }
  }
  if (!notes_key_events_) return;
  const bool readable = kind == MoveKind::kCommitted || kind == MoveKind::kCame;
  for (const SlotId slot : slots) key_events_.push_back({index_.key(slot), readable});
}

std::vector<KeyEvent> SlotClass::take_key_events(WeightsId of) {
  std::vector<KeyEvent> noted = std::exchange(key_events_, {});
  std::erase_if(noted, [this](const KeyEvent& event) { return !event.key.is_of(told_); });
  for (KeyEvent& event : noted) event.key = event.key.mixed_with(told_);
  if (of == told_) return noted;
  const auto add_all = [&](WeightsId weights, bool readable) {
    for (std::uint32_t i = 0; notes_key_events_ && i < table_.end(); ++i) {
      if (!table_.readable(SlotId(i)) || !index_.key(SlotId(i)).is_of(weights)) continue;
      noted.push_back({index_.key(SlotId(i)).mixed_with(weights), readable});
    }
  };
  add_all(std::exchange(told_, of), false);
  add_all(of, true);
  return noted;
}

void SlotClass::end_forgetting(std::uint32_t num_keys_before) {
  if (index_.size() != num_keys_before) ++eviction_epoch_;
  dcheck_conserved();
}

}  // namespace kvferry::cpu_tier
