// SPDX-License-Identifier: Apache-2.0
// Chunks that come from a tier which engine instances share, and go back there.
#include "kvferry/cpu_tier/slots/slab_tier.hpp"

#include <algorithm>

namespace kvferry::cpu_tier {
namespace {

/// Chunks that are taken for one reservation and turn out to bring no free slot: what others left
/// in them is still in use, or of worth.
constexpr int kMostVain = 8;

/// Ages are told in these.
constexpr std::chrono::seconds kMark{4};

/// A request that waits for its turn asks in every step, and a step may be a long prefill: what it
/// found is kept for so long without being asked for.
constexpr std::chrono::milliseconds kGuestTime{250};

/// Chunks that the end of a step gives up at most. Each takes some microseconds, and an engine that
/// is never found between two steps has many of them between two looks of its keeper.
constexpr std::uint32_t kMostOfStep = 2;

}  // namespace

std::uint8_t SlabTier::class_in(std::uint32_t chunk) const {
  if (!directory_->is_of_name_space(chunk)) return kNobody;
  const ChunkShape shape = directory_->shape_of(chunk);
  for (std::uint32_t i = 0; i < num_classes(); ++i) {
    if (classes_[i]->shape == shape) return static_cast<std::uint8_t>(i);
  }
  return kNobody;
}

std::optional<std::uint32_t> SlabTier::add_shared_chunk(std::uint32_t of) {
  for (int attempt = 0; attempt < kMostVain; ++attempt) {
    const std::optional<std::uint32_t> chunk = directory_->take_chunk();
    if (!chunk) {
      num_unowned_ = 0;
      break;
    }
    num_unowned_ -= std::min(num_unowned_, 1U);
    const std::uint8_t its = class_in(*chunk);
    if (its == kNobody) {
      if (!directory_->clear(*chunk)) {
        static_cast<void>(directory_->give_up(*chunk));
        continue;
      }
      const std::uint32_t num_before = classes_[of]->tier.snapshot().num_free;
      give(of, *chunk);
      // None where all of its words are damaged.
      const std::uint32_t num_given = classes_[of]->tier.snapshot().num_free - num_before;
      if (num_given > 0) return num_given;
      continue;
    }
    SlabClass& adopting = *classes_[its];
    const std::uint32_t num_free = adopting.tier.snapshot().num_free;
    if (!adopting.tier.adopt_slots(slots_of(adopting, *chunk))) {
      static_cast<void>(directory_->give_up(*chunk));
      continue;
    }
    owners_[*chunk] = its;
    ++adopting.num_chunks;
    const std::uint32_t num_added = adopting.tier.snapshot().num_free - num_free;
    if (its == of && num_added > 0) return num_added;
  }
  ++num_wanted_;
  return std::nullopt;
}

void SlabTier::hold_still() {
  if (directory_ == nullptr) return;
  MutexLock lock(mutex_);
  holds_still_ = true;
}

void SlabTier::end_step() {
  if (directory_ == nullptr) return;
  MutexLock lock(mutex_);
  holds_still_ = false;
  if (!due_since_) return;
  drop_idle_guests(*due_since_);
  give_up(kMostOfStep);
  if (num_owed_ == 0) due_since_.reset();
}

void SlabTier::mark_time(std::chrono::steady_clock::time_point now) {
  if (marked_at_ && now - *marked_at_ < kMark) return;
  marked_at_ = now;
  for (std::uint32_t i = 0; i < num_classes(); ++i) {
    classes_[i]->marks.mark(classes_[i]->tier.clock());
  }
}

void SlabTier::drop_idle_guests(std::chrono::steady_clock::time_point now) {
  if (now - guests_dropped_at_ < kGuestTime) return;
  guests_dropped_at_ = now;
  for (std::uint32_t i = 0; i < num_classes(); ++i) classes_[i]->tier.drop_idle_guests();
}

std::chrono::seconds SlabTier::coldest_age() const {
  std::uint32_t most = 0;
  for (std::uint32_t i = 0; i < num_classes(); ++i) {
    const SlabClass& one = *classes_[i];
    // What is free is of no use to this instance at all.
    if (one.tier.snapshot().num_free >= one.slots_per_chunk) {
      return TurnoverClock::kMostAge * kMark;
    }
    const std::uint32_t age = one.tier.coldest_age().value_or(0);
    most = std::max(most, one.marks.marks_since(one.tier.clock(), age));
  }
  return most * kMark;
}

void SlabTier::tend(std::chrono::steady_clock::time_point now) {
  MutexLock lock(mutex_);
  for (std::uint32_t i = 0; i < num_classes(); ++i) classes_[i]->tier.settle_set_aside();
  mark_time(now);
  directory_->tell(std::exchange(num_wanted_, 0), coldest_age());
  num_unowned_ = directory_->look_around();
  const std::uint32_t num_to_give = directory_->num_chunks_to_give();
  num_owed_ = num_to_give - std::min(num_to_give, num_unowned_);
  if (holds_still_) {
    due_since_ = now;
    return;
  }
  due_since_.reset();
  drop_idle_guests(now);
  give_up(num_owed_);
}

void SlabTier::give_up(std::uint32_t most) {
  for (; num_owed_ > 0 && most > 0; --most) {
    const std::optional<std::uint32_t> chunk = take_coldest(kNobody, 0);
    if (!chunk) {
      num_owed_ = 0;
      return;
    }
    // One that cannot go has words that no step of this instance wrote: it is out of use.
    if (!directory_->give_up(*chunk)) continue;
    ++num_unowned_;
    --num_owed_;
  }
}

}  // namespace kvferry::cpu_tier
