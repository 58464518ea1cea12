// SPDX-License-Identifier: Apache-2.0
// The work between steps for processes that use the same memory.
#include "kvferry/cpu_tier/slots/tier.hpp"
#include "kvferry/cpu_tier/slots/tier_withdrawals.hpp"

#include "cold_ranges.hpp"
#include "slab_class.hpp"

#include <algorithm>
#include <utility>

namespace kvferry::cpu_tier {
namespace {

/// The unit in which ages are told.
constexpr std::chrono::seconds kMark{4};

/// A request that waits for its turn asks in every step, and a step may be a long prefill. What it
/// found is kept this long even if nothing asks for it.
constexpr std::chrono::milliseconds kGuestTime{250};

/// How many chunks the end of a step gives up at most. Each takes some microseconds. An engine that
/// is never found between two steps makes many steps between two visits of its keeper.
constexpr std::uint32_t kMostOfStep = 2;

}  // namespace

void Tier::hold_still() { holds_still_.store(true, std::memory_order_relaxed); }

void Tier::end_step() {
  holds_still_.store(false, std::memory_order_relaxed);
  if (!is_due_.load(std::memory_order_relaxed)) return;
  MutexLock lock(mutex_);
  if (!is_due_.load(std::memory_order_relaxed)) return;
  TierWithdrawals::forget_withdrawn(*this);
  drop_idle_guests(due_since_);
  give_up(kMostOfStep);
  if (num_owed_ == 0) is_due_.store(false, std::memory_order_relaxed);
}

void Tier::mark_time(std::chrono::steady_clock::time_point now) {
  if (marked_at_ && now - *marked_at_ < kMark) return;
  marked_at_ = now;
  for (std::uint32_t i = 0; i < num_classes_; ++i) {
    classes_[i]->marks.mark(classes_[i]->clock());
  }
}

void Tier::drop_idle_guests(std::chrono::steady_clock::time_point now) {
  if (now - guests_dropped_at_ < kGuestTime) return;
  guests_dropped_at_ = now;
  for (std::uint32_t i = 0; i < num_classes_; ++i) classes_[i]->slots.drop_idle_guests();
}

std::chrono::seconds Tier::coldest_age() const {
  std::uint32_t most = 0;
  for (std::uint32_t i = 0; i < num_classes_; ++i) {
    const SlabClass& one = *classes_[i];
    // Free slots are of no use to this instance at all.
    if (one.count(SlotState::kFree) >= one.slots_per_chunk) {
      return TurnoverClock::kMostAge * kMark;
    }
    const std::uint32_t age = age_of_coldest(one.slots.table().lists()).value_or(0);
    most = std::max(most, one.marks.marks_since(one.clock(), age));
  }
  return most * kMark;
}

void Tier::tend(std::chrono::steady_clock::time_point now) {
  MutexLock lock(mutex_);
  for (std::uint32_t i = 0; i < num_classes_; ++i) classes_[i]->slots.settle_set_aside();
  mark_time(now);
  num_owed_ = peers_->tend(std::exchange(num_wanted_, 0), coldest_age());
  const bool is_in_step = holds_still_.load(std::memory_order_relaxed);
  is_due_.store(is_in_step, std::memory_order_relaxed);
  due_since_ = now;
  if (is_in_step) return;
  TierWithdrawals::forget_withdrawn(*this);
  drop_idle_guests(now);
  give_up(num_owed_);
}

void Tier::give_up(std::uint32_t most) {
  for (; num_owed_ > 0 && most > 0; --most) {
    const std::optional<ChunkId> chunk = detach_coldest(kNoClass, 0);
    if (!chunk) {
      num_owed_ = 0;
      return;
    }
    // A chunk that cannot be given up has words that no step of this instance wrote, so it is out
    // of use.
    if (peers_->give_up(*chunk)) --num_owed_;
  }
}

}  // namespace kvferry::cpu_tier
