// SPDX-License-Identifier: Apache-2.0
// What a tier whose slots other engine instances see does besides.
#include "kvferry/base/check.hpp"
#include "kvferry/cpu_tier/slots/cpu_tier.hpp"

#include "batches.hpp"

#include <algorithm>
#include <array>

namespace kvferry::cpu_tier {
namespace {

/// Hints that are fetched ahead of their use: as many lines as a core has under way.
constexpr std::size_t kAhead = 16;

}  // namespace

void CpuTier::begin_fill(std::span<const SlotId> slots, std::uint32_t num_free) const {
  if (num_free == 0) return;
  std::uint32_t num_begun = 0;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    if (i + kAhead < slots.size()) shared_->prefetch(slots[i + kAhead]);
    num_begun += shared_->begin_fill(slots[i]) ? 1 : 0;
  }
  KVFERRY_CHECK(num_begun == num_free, std::to_string(num_begun) + " of " +
                                           std::to_string(num_free) +
                                           " free slots could begin to be filled");
}

void CpuTier::abandon(std::span<const SlotId> slots) const {
  for (const SlotId slot : slots) shared_->abandon(slot);
}

void CpuTier::publish(std::span<const SlotId> slots) {
  // Each in three steps, kAhead slots apart: what one reads the step before has fetched.
  std::array<TierDirectory::HintChange, kAhead> changes;
  for (std::size_t i = 0; i < slots.size() + 2 * kAhead; ++i) {
    if (i < slots.size()) shared_->prefetch(slots[i]);
    TierDirectory::HintChange& change = changes[i % kAhead];
    if (const std::size_t now = i - 2 * kAhead; now < slots.size()) {
      shared_->publish(slots[now], index_.key(slots[now]), change);
    }
    if (const std::size_t next = i - kAhead; next < slots.size()) {
      change = shared_->prepare_publish(slots[next], index_.key(slots[next]));
    }
  }
}

void CpuTier::find_guests(std::span<const BlockKey> keys, std::span<SlotId> slots) const {
  for (std::size_t i = 0; i < keys.size(); ++i) slots[i] = guest_if_absent(keys, slots, i);
}

SlotId CpuTier::guest_if_absent(std::span<const BlockKey> keys, std::span<const SlotId> slots,
                                std::size_t i) const {
  if (i % kAhead == 0) {
    const std::size_t count = std::min(kAhead, keys.size() - i);
    guests_->prefetch(keys.subspan(i, count), slots.subspan(i, count));
  }
  if (slots[i] != BlockIndex::kNoSlot) return slots[i];
  return guests_->find(keys[i]).value_or(BlockIndex::kNoSlot);
}

void CpuTier::hide_guests(std::span<SlotId> slots) {
  for (SlotId& slot : slots) {
    if (slot == BlockIndex::kNoSlot || !is_guest(slot)) continue;
    guests_->hide(slot);
    ++eviction_epoch_;
    slot = BlockIndex::kNoSlot;
  }
}

bool CpuTier::evict_unused(std::span<SlotId> victims) {
  // Every slot is looked at twice at most: one that others have used since it was looked at last is
  // as good as used just now, once.
  std::size_t num_left = 2 * std::size_t{ledger_.count(SlotState::kEvictable)};
  std::size_t num_evicted = 0;
  while (num_evicted < victims.size()) {
    const std::size_t size = std::min({victims.size() - num_evicted, kStep, num_left,
                                       std::size_t{ledger_.count(SlotState::kEvictable)}});
    if (size == 0) {
      abandon(victims.first(num_evicted));
      return false;
    }
    num_left -= size;
    const std::span<SlotId> coldest = victims.subspan(num_evicted, size);
    ledger_.evict(coldest, policy_.victims());
    for (const SlotId slot : coldest) shared_->prefetch(slot);
    const auto used = std::partition(coldest.begin(), coldest.end(),
                                     [this](SlotId slot) { return shared_->refill_unused(slot); });
    for (auto each = used; each != coldest.end(); ++each) ledger_.take_back(*each);
    const std::span<const SlotId> evicted(coldest.begin(), used);
    if (policy_.wants_evicted()) {
      for (const SlotId slot : evicted) {
        policy_.evicted(index_.key(slot).mixed(), ledger_.segment(slot),
                        ledger_.num_linked(Segment::kProbation));
      }
    }
    note(evicted, false);
    index_.erase(evicted);
    num_evicted_total_ += evicted.size();
    num_evicted += evicted.size();
  }
  return true;
}

bool CpuTier::evict_unread(std::span<const SlotId> slots) {
  std::array<SlotId, kStep> evicted;
  std::size_t num_evicted = 0;
  bool all = true;
  for (std::size_t i = slots.size(); i-- > 0;) {
    if (!ledger_.readable(slots[i])) continue;
    if (!shared_->evict(slots[i])) {
      all = false;
      continue;
    }
    ledger_.forget(slots[i]);
    evicted[num_evicted++] = slots[i];
  }
  note(std::span(evicted).first(num_evicted), false);
  index_.erase(std::span(evicted).first(num_evicted));
  return all;
}

bool CpuTier::any_read_by_others(SlotRange range) const {
  for (std::uint32_t slot = range.first; slot < range.end; ++slot) {
    if (shared_->word(SlotId(slot)).lessees() != 0) return true;
  }
  return false;
}

bool CpuTier::adopt_slots(SlotRange range) {
  MutexLock lock(mutex_);
  for (std::uint32_t i = range.first; i < range.end; ++i) {
    if (guests_->may_become_own(SlotId(i))) continue;
    ++eviction_epoch_;  // Of the guests that were let go before it.
    return false;
  }
  ledger_.add(range);
  // From the last to the first: as far as prefixes lie in order, they leave from their tails.
  for (std::uint32_t i = range.end; i > range.first; --i) {
    const SlotId slot(i - 1);
    const SlotWord word = shared_->word(slot);
    if (word.state() != SharedState::kReadable) {
      if (!shared_->try_free(slot)) set_aside(slot);
      continue;
    }
    const std::optional<BlockKey> key = shared_->key_of(slot);
    SlotId present = BlockIndex::kNoSlot;
    if (key) index_.find({&*key, 1}, {&present, 1});
    hide_guests({&present, 1});
    if (!key || present != BlockIndex::kNoSlot) {
      if (shared_->forget(slot) == SharedState::kDying) set_aside(slot);
      continue;
    }
    ledger_.take_back(slot);
    index_.insert({&*key, 1}, {&slot, 1});
    note({&slot, 1}, true);
  }
  resize_policy();
  dcheck_conserved();
  return true;
}

bool CpuTier::holds(SlotId slot, const BlockKey& key) const {
  return readable(slot) && index_.key(slot) == key;
}

void CpuTier::lease_slots(std::span<const SlotId> slots) {
  if (!guests_ || guests_->size() == 0) return ledger_.lease(slots);
  for (const SlotId slot : slots) {
    if (is_guest(slot)) {
      guests_->lease(slot);
    } else {
      ledger_.lease({&slot, 1});
    }
  }
}

void CpuTier::end_leases(std::span<const SlotId> slots) {
  if (!shared_) return ledger_.end_leases(slots);
  if (guests_->size() == 0 && ledger_.count(SlotState::kDying) == 0) {
    return ledger_.end_leases(slots);
  }
  for (std::size_t i = slots.size(); i-- > 0;) {
    const SlotId slot = slots[i];
    if (is_guest(slot)) {
      if (guests_->end_lease(slot)) ++eviction_epoch_;
      continue;
    }
    ledger_.end_leases({&slot, 1});
    // It was dying: others may read it still.
    if (ledger_.state(slot) == SlotState::kFree && !shared_->try_free(slot)) set_aside(slot);
  }
}

void CpuTier::set_aside_unless_free(SlotRange range) {
  for (std::uint32_t i = range.first; i < range.end; ++i) {
    if (!shared_->try_free(SlotId(i))) set_aside(SlotId(i));
  }
}

void CpuTier::set_aside(SlotId slot) {
  ledger_.set_aside(slot);
  set_aside_.push_back(slot);
}

void CpuTier::leave_behind(AbortedSlots&& slots) {
  if (!shared_) return release(std::move(slots));
  leave_behind(quarantine(std::move(slots)));
}

void CpuTier::leave_behind(QuarantinedSlots&& slots) {
  if (!shared_) return release(std::move(slots));
  const std::vector<SlotId> left = slots.take();
  MutexLock lock(mutex_);
  // Their words stay filling, and their chunks named.
  num_left_behind_ += static_cast<std::uint32_t>(left.size());
}

void CpuTier::leave_behind(Lease&& lease) {
  if (!shared_) return release(std::move(lease));
  const std::vector<SlotId> left = lease.take();
  MutexLock lock(mutex_);
  any_lease_left_ = any_lease_left_ || !left.empty();
  for (const SlotId slot : left) {
    if (is_guest(slot)) guests_->leave_behind(slot);
  }
}

void CpuTier::settle_set_aside() {
  MutexLock lock(mutex_);
  std::erase_if(set_aside_, [this](SlotId slot) KVFERRY_REQUIRES(mutex_) {
    if (!shared_->try_free(slot)) return false;
    ledger_.free({&slot, 1}, SlotState::kQuarantined);
    return true;
  });
  dcheck_conserved();
}

void CpuTier::drop_idle_guests() {
  MutexLock lock(mutex_);
  if (guests_->drop_idle()) ++eviction_epoch_;
}

}  // namespace kvferry::cpu_tier
