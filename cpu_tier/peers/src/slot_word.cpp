// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/peers/slot_word.hpp"

#include "kvferry/base/check.hpp"

#include <string>

namespace kvferry::cpu_tier {
namespace {

/// Each failed attempt is another process's success. This many in a row mean that the slot is
/// leased and released all the time, so it counts as in use.
constexpr int kMaxAttempts = 64;

constexpr std::uint64_t kForget = static_cast<std::uint64_t>(SharedState::kDying) &
                                  ~static_cast<std::uint64_t>(SharedState::kReadable);
static_assert((static_cast<std::uint64_t>(SharedState::kReadable) | kForget) ==
              static_cast<std::uint64_t>(SharedState::kDying));

}  // namespace

bool SharedSlot::move(SharedState from, SharedState to) {
  std::uint64_t seen = word_->load(std::memory_order_relaxed);
  if (SlotWord{seen}.state() != from) return false;
  return word_->compare_exchange_strong(seen, SlotWord{seen}.with(to).bits,
                                        std::memory_order_acq_rel, std::memory_order_acquire);
}

bool SharedSlot::move_unread(SharedState from, SharedState to) {
  std::uint64_t seen = word_->load(std::memory_order_relaxed);
  for (int attempt = 0; attempt < kMaxAttempts; ++attempt) {
    const SlotWord word{seen};
    if (word.state() != from || word.lessees() != 0 || word.withdrawn()) return false;
    const SlotWord next =
        to == SharedState::kFilling ? word.untouched().of_next_generation() : word;
    if (word_->compare_exchange_strong(seen, next.with(to).bits, std::memory_order_acq_rel,
                                       std::memory_order_acquire)) {
      return true;
    }
  }
  return false;
}

bool SharedSlot::begin_fill() { return move_unread(SharedState::kFree, SharedState::kFilling); }

bool SharedSlot::refill() { return move_unread(SharedState::kReadable, SharedState::kFilling); }

bool SharedSlot::publish() { return move(SharedState::kFilling, SharedState::kReadable); }

bool SharedSlot::abandon() { return move(SharedState::kFilling, SharedState::kFree); }

bool SharedSlot::evict() { return move_unread(SharedState::kReadable, SharedState::kFree); }

SharedState SharedSlot::forget() {
  const SlotWord before{word_->fetch_or(kForget, std::memory_order_acq_rel)};
  KVFERRY_CHECK(before.state() == SharedState::kReadable,
                "a slot that is not readable was forgotten: " + std::to_string(before.bits));
  return free_dying() ? SharedState::kFree : SharedState::kDying;
}

bool SharedSlot::free_dying() { return move_unread(SharedState::kDying, SharedState::kFree); }

bool SharedSlot::take_touched() {
  // Most slots were not touched, so this avoids a write to a line that others read.
  if (!load().touched()) return false;
  const SlotWord all{~std::uint64_t{0}};
  return SlotWord{word_->fetch_and(all.untouched().bits, std::memory_order_acq_rel)}.touched();
}

bool SharedSlot::quarantine() { return move(SharedState::kFilling, SharedState::kQuarantined); }

bool SharedSlot::free_quarantined() { return move(SharedState::kQuarantined, SharedState::kFree); }

bool SharedSlot::doubt() {
  std::uint64_t seen = word_->load(std::memory_order_relaxed);
  for (int attempt = 0; attempt < kMaxAttempts; ++attempt) {
    if (word_->compare_exchange_strong(seen, SlotWord{seen}.doubted().bits,
                                       std::memory_order_acq_rel, std::memory_order_acquire)) {
      return true;
    }
  }
  return false;
}

bool SharedSlot::lease(InstanceId reader) {
  std::uint64_t seen = word_->load(std::memory_order_acquire);
  for (int attempt = 0; attempt < kMaxAttempts; ++attempt) {
    const SlotWord word{seen};
    if (!word.can_be_read() || word.is_leased_by(reader)) return false;
    if (word_->compare_exchange_strong(seen, word.with_lessee(reader).bits,
                                       std::memory_order_acq_rel, std::memory_order_acquire)) {
      return true;
    }
  }
  return false;
}

// Only the owner changes a free word. A bit that is set as well turns free into dying, as it turns
// readable into dying.
void SharedSlot::withdraw() {
  const bool is_forgotten = load().state() == SharedState::kFree;
  const SlotWord bits = SlotWord{}.as_withdrawn();
  word_->fetch_or((is_forgotten ? bits.with(SharedState::kDying) : bits).bits,
                  std::memory_order_acq_rel);
}

bool SharedSlot::end_lease(InstanceId reader) {
  const SlotWord all{~std::uint64_t{0}};
  const std::uint64_t others = all.without_lessee(reader).bits;
  return SlotWord{word_->fetch_and(others, std::memory_order_acq_rel)}.is_leased_by(reader);
}

}  // namespace kvferry::cpu_tier
