// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/cpu_tier.hpp"

#include "kvferry/base/check.hpp"

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

namespace kvferry::cpu_tier {
namespace {

/// Keys looked up at a time where the answer needs no array of its own.
constexpr std::size_t kChunk = 64;
using SlotChunk = std::array<SlotId, kChunk>;

/// Calls `work(keys, slots)` for consecutive chunks of `keys`, the last chunk first.
template <class Work>
void for_each_chunk_from_tail(const BlockIndex& index, std::span<const BlockKey> keys,
                              const Work& work) {
  SlotChunk chunk;
  for (std::size_t end = keys.size(); end > 0;) {
    const std::size_t count = std::min(kChunk, end);
    const std::span<SlotId> slots = std::span(chunk).first(count);
    index.find(keys.subspan(end - count, count), slots);
    work(std::span<const SlotId>(slots));
    end -= count;
  }
}

}  // namespace

Reservation::Reservation(Reservation&& other) noexcept
    : tier_(other.tier_), slots_(std::move(other.slots_)) {}

Reservation& Reservation::operator=(Reservation&& other) noexcept {
  if (this != &other) {
    tier_->give_back(std::move(slots_));
    tier_ = other.tier_;
    slots_ = std::move(other.slots_);
  }
  return *this;
}

Reservation::~Reservation() { tier_->give_back(std::move(slots_)); }

CpuTier::CpuTier(std::uint32_t max_slots) : index_(max_slots), ledger_(max_slots) {}

CpuTier::~CpuTier() {
  const TierSnapshot now = snapshot();
  KVFERRY_CHECK(now.num_free + now.num_evictable == now.num_slots,
                "a tier died with " + std::to_string(now.num_writable) + " writable, " +
                    std::to_string(now.num_aborted) + " aborted, " +
                    std::to_string(now.num_leased) + " leased, " + std::to_string(now.num_dying) +
                    " dying, " + std::to_string(now.num_quarantined) + " quarantined slots out");
}

void CpuTier::grow_to(std::uint32_t num_slots) {
  ledger_.grow_to(num_slots);
  dcheck_conserved();
}

Result<Reservation, Exhausted> CpuTier::reserve(std::span<const BlockKey> keys) {
  const std::uint32_t num_free = ledger_.count(SlotState::kFree);
  const std::uint32_t num_available = num_free + ledger_.count(SlotState::kEvictable);
  if (keys.size() > num_available) {
    ++num_exhausted_total_;
    return Exhausted{num_available};
  }
  std::vector<SlotId> taken(keys.size());
  const std::span<SlotId> slots(taken);

#ifndef NDEBUG
  // Before evicting: a key that is readable must not be evicted to make room for itself. Whoever
  // reserves has just looked its keys up, so release builds leave it at insert()'s own check.
  index_.find(keys, slots);
  for (const SlotId slot : slots) {
    KVFERRY_CHECK(slot == BlockIndex::kNoSlot,
                  "a key was reserved that slot " + std::to_string(slot.value()) + " holds");
  }
#endif
  if (keys.size() > num_free) {
    const std::span<SlotId> victims = slots.first(keys.size() - num_free);
    ledger_.evict_coldest(victims);
    index_.erase(victims);
    num_evicted_total_ += victims.size();
    ++eviction_epoch_;
  }
  ledger_.take(slots);
  index_.insert(keys, slots);
  num_reserved_total_ += slots.size();
  dcheck_conserved();
  return Reservation(this, WritableSlots(std::move(taken)));
}

void CpuTier::give_back(WritableSlots&& slots) {
  const std::vector<SlotId> given = slots.take();
  ledger_.free(given, SlotState::kWritable);
  index_.erase(given);
  dcheck_conserved();
}

void CpuTier::commit(WritableSlots&& slots, const std::optional<BlockKey>& predecessor) {
  const std::vector<SlotId> stored = slots.take();
  SlotId before = BlockIndex::kNoSlot;
  if (predecessor) index_.find({&*predecessor, 1}, {&before, 1});
  if (before == BlockIndex::kNoSlot) {
    ledger_.commit(stored);
  } else {
    ledger_.commit(stored, before);
  }
  num_committed_total_ += stored.size();
  dcheck_conserved();
}

AbortedSlots CpuTier::abort(WritableSlots&& slots) {
  ledger_.abort(slots.slots());
  index_.erase(slots.slots());
  dcheck_conserved();
  return AbortedSlots(slots.take());
}

void CpuTier::release(AbortedSlots&& slots) {
  ledger_.free(slots.take(), SlotState::kAborted);
  dcheck_conserved();
}

QuarantinedSlots CpuTier::quarantine(AbortedSlots&& slots) {
  ledger_.quarantine(slots.slots());
  dcheck_conserved();
  return QuarantinedSlots(slots.take());
}

void CpuTier::release(QuarantinedSlots&& slots) {
  ledger_.free(slots.take(), SlotState::kQuarantined);
  dcheck_conserved();
}

PrefixHit CpuTier::lookup_prefix(std::span<const BlockKey> keys, PrefixHit known) const {
  PrefixHit hit{eviction_epoch_, std::move(known.slots)};
  std::size_t num_held = 0;
  const std::size_t num_known = std::min(hit.slots.size(), keys.size());
  while (num_held < num_known && ledger_.readable(hit.slots[num_held]) &&
         index_.key(hit.slots[num_held]) == keys[num_held]) {
    ++num_held;
  }
  hit.slots.resize(num_held);
  SlotChunk chunk;
  for (std::size_t first = num_held; first < keys.size(); first += kChunk) {
    const std::size_t count = std::min(kChunk, keys.size() - first);
    index_.find(keys.subspan(first, count), std::span(chunk).first(count));
    std::size_t readable = 0;
    while (readable < count && chunk[readable] != BlockIndex::kNoSlot &&
           ledger_.readable(chunk[readable])) {
      ++readable;
    }
    hit.slots.insert(hit.slots.end(), chunk.begin(),
                     chunk.begin() + static_cast<std::ptrdiff_t>(readable));
    if (readable < count) break;
  }
  return hit;
}

void CpuTier::lookup(std::span<const BlockKey> keys, std::span<KeyState> states) const {
  KVFERRY_CHECK(keys.size() == states.size(), "lookup() with spans of different lengths");
  SlotChunk chunk;
  for (std::size_t first = 0; first < keys.size(); first += kChunk) {
    const std::size_t count = std::min(kChunk, keys.size() - first);
    index_.find(keys.subspan(first, count), std::span(chunk).first(count));
    for (std::size_t i = 0; i < count; ++i) {
      states[first + i] = chunk[i] == BlockIndex::kNoSlot ? KeyState::kAbsent
                          : ledger_.readable(chunk[i])    ? KeyState::kReadable
                                                          : KeyState::kWritable;
    }
  }
}

Result<Lease, NotReadable> CpuTier::lease(std::span<const BlockKey> keys) {
  std::vector<SlotId> slots(keys.size());
  index_.find(keys, slots);
  for (std::size_t i = 0; i < slots.size(); ++i) {
    if (slots[i] == BlockIndex::kNoSlot || !ledger_.readable(slots[i])) return NotReadable{i};
  }
  ledger_.lease(slots);
  dcheck_conserved();
  return Lease(std::move(slots));
}

Result<Lease, NotReadable> CpuTier::lease(const PrefixHit& hit, std::size_t count) {
  KVFERRY_CHECK(count <= hit.size(), "a lease beyond the end of its hit");
  if (hit.eviction_epoch != eviction_epoch_) return NotReadable{};
  std::vector<SlotId> slots(hit.slots.begin(),
                            hit.slots.begin() + static_cast<std::ptrdiff_t>(count));
  ledger_.lease(slots);
  dcheck_conserved();
  return Lease(std::move(slots));
}

void CpuTier::release(Lease&& lease) {
  ledger_.end_leases(lease.take());
  dcheck_conserved();
}

void CpuTier::touch(std::span<const BlockKey> keys) {
  for_each_chunk_from_tail(index_, keys, [this](std::span<const SlotId> slots) {
    for (std::size_t i = slots.size(); i-- > 0;) {
      const SlotId slot = slots[i];
      if (slot != BlockIndex::kNoSlot && ledger_.readable(slot)) ledger_.touch(slot);
    }
  });
  dcheck_conserved();
}

void CpuTier::forget(const Lease& lease) {
  const std::uint32_t num_keys_before = index_.size();
  std::span<const SlotId> rest = lease.slots();
  while (!rest.empty()) {
    const std::size_t count = std::min(rest.size(), kChunk);
    forget_readable(rest.last(count));
    rest = rest.first(rest.size() - count);
  }
  if (index_.size() != num_keys_before) ++eviction_epoch_;
  dcheck_conserved();
}

void CpuTier::forget(std::span<const BlockKey> keys) {
  const std::uint32_t num_keys_before = index_.size();
  for_each_chunk_from_tail(index_, keys,
                           [this](std::span<const SlotId> slots) { forget_readable(slots); });
  if (index_.size() != num_keys_before) ++eviction_epoch_;
  dcheck_conserved();
}

void CpuTier::forget_all() {
  const std::uint32_t num_keys_before = index_.size();
  // From the last slot to the first, so that a tier forgotten whole hands slots out in ascending
  // order again.
  SlotChunk chunk;
  for (std::uint32_t end = ledger_.num_slots(); end > 0;) {
    const auto count = static_cast<std::uint32_t>(std::min<std::size_t>(kChunk, end));
    for (std::uint32_t i = 0; i < count; ++i) chunk[i] = SlotId(end - count + i);
    forget_readable(std::span(chunk).first(count));
    end -= count;
  }
  if (index_.size() != num_keys_before) ++eviction_epoch_;
  dcheck_conserved();
}

void CpuTier::forget_readable(std::span<const SlotId> slots) {
  SlotChunk forgotten;
  std::size_t num_forgotten = 0;
  for (std::size_t i = slots.size(); i-- > 0;) {
    const SlotId slot = slots[i];
    if (slot == BlockIndex::kNoSlot || !ledger_.readable(slot)) continue;
    ledger_.forget(slot);
    forgotten[num_forgotten++] = slot;
  }
  index_.erase(std::span(forgotten).first(num_forgotten));
}

std::uint64_t CpuTier::eviction_epoch() const { return eviction_epoch_; }

TierSnapshot CpuTier::snapshot() const {
  TierSnapshot now;
  now.num_free = ledger_.count(SlotState::kFree);
  now.num_writable = ledger_.count(SlotState::kWritable);
  now.num_aborted = ledger_.count(SlotState::kAborted);
  now.num_evictable = ledger_.count(SlotState::kEvictable);
  now.num_leased = ledger_.count(SlotState::kLeased);
  now.num_dying = ledger_.count(SlotState::kDying);
  now.num_quarantined = ledger_.count(SlotState::kQuarantined);
  now.num_slots = ledger_.num_slots();
  now.num_reserved_total = num_reserved_total_;
  now.num_committed_total = num_committed_total_;
  now.num_evicted_total = num_evicted_total_;
  now.num_exhausted_total = num_exhausted_total_;
  return now;
}

void CpuTier::dcheck_conserved() const {
  KVFERRY_DCHECK(snapshot().conserved(), "slots were lost or gained (G10)");
  KVFERRY_DCHECK(index_.size() == ledger_.count(SlotState::kWritable) +
                                      ledger_.count(SlotState::kEvictable) +
                                      ledger_.count(SlotState::kLeased),
                 "the index holds " + std::to_string(index_.size()) + " keys");
}

void CpuTier::check_invariants() const {
  ledger_.check_invariants();
  index_.check_invariants();
  KVFERRY_CHECK(snapshot().conserved(), "slots were lost or gained (G10)");
  std::uint32_t num_keyed = 0;
  for (std::uint32_t i = 0; i < ledger_.num_slots(); ++i) {
    const SlotId slot(i);
    if (!ledger_.readable(slot) && ledger_.state(slot) != SlotState::kWritable) continue;
    ++num_keyed;
    SlotId found;
    index_.find(std::span(&index_.key(slot), 1), std::span(&found, 1));
    KVFERRY_CHECK(found == slot, "the key of slot " + std::to_string(i) + " leads elsewhere");
  }
  KVFERRY_CHECK(num_keyed == index_.size(), std::to_string(index_.size()) + " keys for " +
                                                std::to_string(num_keyed) + " slots");
}

}  // namespace kvferry::cpu_tier
