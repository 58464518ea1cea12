// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/slots/cpu_tier.hpp"

#include "kvferry/base/check.hpp"
#include "kvferry/base/error.hpp"

#include "batches.hpp"

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

namespace kvferry::cpu_tier {
namespace {

float checked_share(float share) {
  if (share >= 0 && share <= 1) return share;
  throw ConfigError("max_awaited_share is " + std::to_string(share) +
                    "; it is a share of the tier, between 0 and 1");
}

}  // namespace

Reservation::Reservation(Reservation&& other) noexcept
    : tier_(other.tier_), slots_(std::move(other.slots_)) {}

Reservation& Reservation::operator=(Reservation&& other) noexcept {
  if (this != &other) {
    give_back();
    tier_ = other.tier_;
    slots_ = std::move(other.slots_);
  }
  return *this;
}

Reservation::~Reservation() { give_back(); }

// One without slots must not touch the tier: it may have outlived it, or die under its lock.
void Reservation::give_back() {
  if (!slots_.empty()) tier_->give_back(std::move(slots_));
}

WritableSlots Reservation::hand_over() && { return std::move(slots_); }

CpuTier::CpuTier(std::uint32_t max_slots, const TierOptions& options,
                 const std::optional<SharedSlots>& shared)
    : index_(max_slots),
      policy_(options, max_slots),
      ledger_(max_slots, policy_.is_plain_lru() ? Segments::kOne : Segments::kTwo),
      shared_(shared),
      guests_(shared ? std::make_unique<GuestSlots>(*shared, index_, max_slots) : nullptr),
      notes_key_events_(options.key_events),
      max_awaited_share_(checked_share(options.max_awaited_share)) {}

CpuTier::~CpuTier() {
  const TierSnapshot now = snapshot();
  MutexLock lock(mutex_);
  const std::uint32_t num_left =
      num_left_behind_ + (any_lease_left_ ? now.num_leased + now.num_dying : 0);
  KVFERRY_CHECK(now.num_free + now.num_evictable + now.num_set_aside + num_left == now.num_slots,
                "a tier died with " + std::to_string(now.num_writable) + " writable, " +
                    std::to_string(now.num_aborted) + " aborted, " +
                    std::to_string(now.num_leased) + " leased, " + std::to_string(now.num_dying) +
                    " dying, " + std::to_string(now.num_quarantined) + " quarantined slots out");
}

void CpuTier::grow_to(std::uint32_t num_slots) {
  MutexLock lock(mutex_);
  ledger_.grow_to(num_slots);
  resize_policy();
  dcheck_conserved();
}

Result<Reservation, NotReserved> CpuTier::reserve(std::span<const BlockKey> keys) {
  std::vector<SlotId> taken(keys.size());
  const std::span<SlotId> slots(taken);
  MutexLock lock(mutex_);
  const std::uint32_t num_free = ledger_.count(SlotState::kFree);
  const std::uint32_t num_available = num_free + ledger_.count(SlotState::kEvictable);
  if (keys.size() > num_available) {
    ++num_exhausted_total_;
    return NotReserved{num_available};
  }
  // Before evicting: a key that is readable must not be evicted to make room for itself.
  index_.find(keys, slots);
  if (guests_) hide_guests(slots);
  const auto present = std::find_if(slots.begin(), slots.end(),
                                    [](SlotId slot) { return slot != BlockIndex::kNoSlot; });
  if (present != slots.end()) {
    return NotReserved{static_cast<std::uint32_t>(keys.size()),
                       static_cast<std::size_t>(present - slots.begin())};
  }
  if (keys.size() > num_free) {
    ++eviction_epoch_;
    const std::span<SlotId> victims = slots.first(keys.size() - num_free);
    if (!shared_) {
      evict(victims);
    } else if (!evict_unused(victims)) {
      ++num_exhausted_total_;
      return NotReserved{ledger_.count(SlotState::kFree)};
    }
  }
  take(keys, slots);
  if (shared_) begin_fill(slots, std::min(num_free, static_cast<std::uint32_t>(slots.size())));
  num_reserved_total_ += slots.size();
  dcheck_conserved();
  return Reservation(this, WritableSlots(std::move(taken)));
}

void CpuTier::evict(std::span<SlotId> victims) {
  num_evicted_total_ += victims.size();
  // Ghosts are counted against what is left on probation when all of them are out.
  const std::size_t step = policy_.wants_evicted() ? victims.size() : kStep;
  while (!victims.empty()) {
    const std::span<SlotId> next = victims.first(std::min(step, victims.size()));
    victims = victims.subspan(next.size());
    ledger_.evict(next, policy_.victims());
    if (policy_.wants_evicted()) {
      for (const SlotId slot : next) {
        policy_.evicted(index_.key(slot).mixed(), ledger_.segment(slot),
                        ledger_.num_linked(Segment::kProbation));
      }
    }
    note(next, false);
    index_.erase(next);
  }
}

void CpuTier::take(std::span<const BlockKey> keys, std::span<SlotId> slots) {
  std::array<std::uint64_t, kStep> hashes;
  for (std::size_t first = 0; first < keys.size(); first += kStep) {
    const std::size_t count = std::min(kStep, keys.size() - first);
    const std::span<SlotId> step = slots.subspan(first, count);
    if (policy_.is_plain_lru()) {
      ledger_.take(step);
    } else {
      std::array<Placement, kStep> placements;
      for (std::size_t i = 0; i < count; ++i) hashes[i] = keys[first + i].mixed();
      policy_.place(std::span(hashes).first(count), std::span(placements).first(count));
      ledger_.take(step, std::span(placements).first(count));
    }
    index_.insert(keys.subspan(first, count), step);
  }
}

void CpuTier::give_back(WritableSlots&& slots) {
  const std::vector<SlotId> given = slots.take();
  MutexLock lock(mutex_);
  if (shared_) abandon(given);
  ledger_.free(given, SlotState::kWritable);
  index_.erase(given);
  dcheck_conserved();
}

void CpuTier::commit(WritableSlots&& slots, const std::optional<BlockKey>& predecessor) {
  const std::vector<SlotId> stored = slots.take();
  MutexLock lock(mutex_);
  SlotId before = BlockIndex::kNoSlot;
  if (predecessor) index_.find({&*predecessor, 1}, {&before, 1});
  if (before == BlockIndex::kNoSlot) {
    ledger_.commit(stored);
  } else {
    ledger_.commit(stored, before);
  }
  if (shared_) publish(stored);
  note(stored, true);
  num_committed_total_ += stored.size();
  dcheck_conserved();
}

AbortedSlots CpuTier::abort(WritableSlots&& slots) {
  MutexLock lock(mutex_);
  ledger_.abort(slots.slots());
  index_.erase(slots.slots());
  dcheck_conserved();
  return AbortedSlots(slots.take());
}

void CpuTier::release(AbortedSlots&& slots) {
  const std::vector<SlotId> released = slots.take();
  MutexLock lock(mutex_);
  if (shared_) abandon(released);
  ledger_.free(released, SlotState::kAborted);
  dcheck_conserved();
}

QuarantinedSlots CpuTier::quarantine(AbortedSlots&& slots) {
  MutexLock lock(mutex_);
  ledger_.quarantine(slots.slots());
  dcheck_conserved();
  return QuarantinedSlots(slots.take());
}

void CpuTier::release(QuarantinedSlots&& slots) {
  const std::vector<SlotId> released = slots.take();
  MutexLock lock(mutex_);
  if (shared_) abandon(released);
  ledger_.free(released, SlotState::kQuarantined);
  dcheck_conserved();
}

PrefixHit CpuTier::lookup_prefix(std::span<const BlockKey> keys, PrefixHit known) const {
  MutexLock lock(mutex_);
  PrefixHit hit{eviction_epoch_, std::move(known.slots)};
  std::size_t num_held = 0;
  const std::size_t num_known = std::min(hit.slots.size(), keys.size());
  while (num_held < num_known && holds(hit.slots[num_held], keys[num_held])) ++num_held;
  hit.slots.resize(num_held);
  SlotBatch batch;
  const bool may_find_guests = sees_others();
  std::size_t count = 0;
  std::size_t limit = kFirstBatch;
  for (std::size_t first = num_held; first < keys.size(); first += count) {
    count = std::min(limit, keys.size() - first);
    limit = std::min(2 * limit, kBatch);
    const std::span<SlotId> slots = std::span(batch).first(count);
    index_.find(keys.subspan(first, count), slots);
    std::size_t num_readable = 0;
    while (num_readable < count) {
      SlotId& slot = slots[num_readable];
      if (may_find_guests) slot = guest_if_absent(keys.subspan(first, count), slots, num_readable);
      if (slot == BlockIndex::kNoSlot || !readable(slot)) break;
      ++num_readable;
    }
    hit.slots.insert(hit.slots.end(), batch.begin(),
                     batch.begin() + static_cast<std::ptrdiff_t>(num_readable));
    if (num_readable < count) break;
  }
  return hit;
}

void CpuTier::lookup(std::span<const BlockKey> keys, std::span<KeyState> states) const {
  KVFERRY_CHECK(keys.size() == states.size(), "lookup() with spans of different lengths");
  SlotBatch batch;
  MutexLock lock(mutex_);
  for (std::size_t first = 0; first < keys.size(); first += kBatch) {
    const std::size_t count = std::min(kBatch, keys.size() - first);
    index_.find(keys.subspan(first, count), std::span(batch).first(count));
    if (sees_others()) find_guests(keys.subspan(first, count), std::span(batch).first(count));
    for (std::size_t i = 0; i < count; ++i) {
      states[first + i] = batch[i] == BlockIndex::kNoSlot ? KeyState::kAbsent
                          : readable(batch[i])            ? KeyState::kReadable
                                                          : KeyState::kWritable;
    }
  }
}

Result<Lease, NotReadable> CpuTier::lease(std::span<const BlockKey> keys) {
  std::vector<SlotId> slots(keys.size());
  MutexLock lock(mutex_);
  index_.find(keys, slots);
  if (sees_others()) find_guests(keys, slots);
  for (std::size_t i = 0; i < slots.size(); ++i) {
    if (slots[i] == BlockIndex::kNoSlot || !readable(slots[i])) return NotReadable{i};
  }
  lease_slots(slots);
  dcheck_conserved();
  return Lease(std::move(slots));
}

Result<Lease, NotReadable> CpuTier::lease(const PrefixHit& hit, std::size_t count) {
  KVFERRY_CHECK(count <= hit.size(), "a lease beyond the end of its hit");
  std::vector<SlotId> slots(hit.slots.begin(),
                            hit.slots.begin() + static_cast<std::ptrdiff_t>(count));
  MutexLock lock(mutex_);
  if (hit.eviction_epoch != eviction_epoch_) return NotReadable{};
  lease_slots(slots);
  dcheck_conserved();
  return Lease(std::move(slots));
}

void CpuTier::release(Lease&& lease) {
  const std::vector<SlotId> ended = lease.take();
  MutexLock lock(mutex_);
  end_leases(ended);
  dcheck_conserved();
}

void CpuTier::forget(const Lease& lease) {
  MutexLock lock(mutex_);
  const std::uint32_t num_keys_before = index_.size();
  std::span<const SlotId> rest = lease.slots();
  while (!rest.empty()) {
    const std::size_t count = std::min(rest.size(), kBatch);
    forget_readable(rest.last(count));
    rest = rest.first(rest.size() - count);
  }
  end_forgetting(num_keys_before);
}

void CpuTier::forget_all() {
  MutexLock lock(mutex_);
  const std::uint32_t num_keys_before = index_.size();
  // From the last slot to the first, so that a tier forgotten whole hands slots out in ascending
  // order again.
  SlotBatch batch;
  for (std::uint32_t end = ledger_.end(); end > 0;) {
    const auto count = static_cast<std::uint32_t>(std::min<std::size_t>(kBatch, end));
    for (std::uint32_t i = 0; i < count; ++i) batch[i] = SlotId(end - count + i);
    forget_readable(std::span(batch).first(count));
    end -= count;
  }
  if (guests_ && guests_->hide_all()) ++eviction_epoch_;
  end_forgetting(num_keys_before);
}

void CpuTier::forget_readable(std::span<const SlotId> slots) {
  SlotBatch forgotten;
  std::size_t num_forgotten = 0;
  for (std::size_t i = slots.size(); i-- > 0;) {
    const SlotId slot = slots[i];
    if (is_guest(slot)) {
      if (guests_->forget(slot)) ++eviction_epoch_;
      continue;
    }
    if (!ledger_.readable(slot)) continue;
    ledger_.forget(slot);
    if (shared_ && shared_->forget(slot) == SharedState::kDying &&
        ledger_.state(slot) == SlotState::kFree) {
      set_aside(slot);
    }
    forgotten[num_forgotten++] = slot;
  }
  note(std::span(forgotten).first(num_forgotten), false);
  index_.erase(std::span(forgotten).first(num_forgotten));
}

void CpuTier::note(std::span<const SlotId> slots, bool readable) {
  if (!notes_key_events_) return;
  for (const SlotId slot : slots) key_events_.push_back({index_.key(slot), readable});
}

std::vector<KeyEvent> CpuTier::take_key_events() {
  MutexLock lock(mutex_);
  return std::exchange(key_events_, {});
}

void CpuTier::end_forgetting(std::uint32_t num_keys_before) {
  if (index_.size() != num_keys_before) ++eviction_epoch_;
  dcheck_conserved();
}

BlockKey CpuTier::key(SlotId slot) const {
  MutexLock lock(mutex_);
  return index_.key(slot);
}

std::uint64_t CpuTier::eviction_epoch() const {
  MutexLock lock(mutex_);
  return eviction_epoch_;
}

TierSnapshot CpuTier::snapshot() const {
  MutexLock lock(mutex_);
  return snapshot_locked();
}

const char* CpuTier::rule_name() const {
  MutexLock lock(mutex_);
  return policy_.rule().name;
}

}  // namespace kvferry::cpu_tier
