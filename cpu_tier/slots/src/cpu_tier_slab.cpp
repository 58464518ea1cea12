// SPDX-License-Identifier: Apache-2.0
// Slots whose memory comes and goes: what the tier of one slab class does when chunks move.
#include "kvferry/base/check.hpp"
#include "kvferry/cpu_tier/slots/cpu_tier.hpp"

#include "batches.hpp"

#include <algorithm>
#include <array>

namespace kvferry::cpu_tier {
namespace {

/// Ranges that are looked at for the coldest one, by segment: sets are stored and left in runs, so
/// that the slots of a range are mostly of one age, and the first is good enough.
constexpr std::size_t kCandidates = 4;
/// Slots that are looked at to find them.
constexpr std::size_t kMostSteps = 64;

/// A simulation of the tier starts anew when its size changes: not with each piece or chunk.
constexpr std::uint32_t kPolicyTolerance = 8;

}  // namespace

void CpuTier::add_slots(SlotRange range) {
  MutexLock lock(mutex_);
  ledger_.add(range);
  if (shared_) set_aside_unless_free(range);
  resize_policy();
  dcheck_conserved();
}

bool CpuTier::remove_slots(SlotRange range) {
  MutexLock lock(mutex_);
  if (ledger_.any_named(range) || (shared_ && any_read_by_others(range))) return false;
  const std::uint32_t num_keys_before = index_.size();
  bool all_evicted = true;
  std::array<SlotId, kStep> slots;
  for (std::uint32_t first = range.first; first < range.end;) {
    const auto count = std::min<std::uint32_t>(kStep, range.end - first);
    for (std::uint32_t i = 0; i < count; ++i) slots[i] = SlotId(first + i);
    if (shared_) {
      all_evicted = evict_unread(std::span(slots).first(count)) && all_evicted;
    } else {
      forget_readable(std::span(slots).first(count));
    }
    first += count;
  }
  num_evicted_total_ += num_keys_before - index_.size();
  if (all_evicted) {
    ledger_.remove(range);
    resize_policy();
  }
  end_forgetting(num_keys_before);
  return all_evicted;
}

void CpuTier::resize_policy() {
  const std::uint32_t now = ledger_.num_slots();
  const std::uint32_t change = std::max(now, num_policy_slots_) - std::min(now, num_policy_slots_);
  if (now == 0 || change * kPolicyTolerance < num_policy_slots_) return;
  policy_.resize(now);
  num_policy_slots_ = now;
}

std::optional<ColdRange> CpuTier::coldest_range(std::uint32_t num_slots) const {
  MutexLock lock(mutex_);
  const auto range_of = [num_slots](SlotId slot) {
    const std::uint32_t first = slot.value() / num_slots * num_slots;
    return SlotRange{first, first + num_slots};
  };
  std::optional<ColdRange> coldest;
  const auto consider = [&](SlotId slot) KVFERRY_REQUIRES(mutex_) {
    const std::optional<ColdRange> range = cold_range(range_of(slot));
    if (!range) return;
    if (!coldest || !range->age || (coldest->age && *range->age > *coldest->age)) coldest = range;
  };
  const SlotId free = ledger_.longest_free();
  if (free != SlotLedger::kNoVictim) consider(free);
  for (const Segment segment : {Segment::kProbation, Segment::kProtected}) {
    std::uint32_t last = SlotLedger::kNoVictim.value();
    std::size_t num_candidates = 0;
    SlotId slot = ledger_.coldest_of(segment);
    for (std::size_t step = 0; step < kMostSteps && num_candidates < kCandidates; ++step) {
      if (slot == SlotLedger::kNoVictim || (coldest && !coldest->age)) break;
      if (const std::uint32_t first = range_of(slot).first; first != last) {
        consider(slot);
        last = first;
        ++num_candidates;
      }
      slot = ledger_.hotter_than(slot);
    }
  }
  return coldest;
}

std::optional<ColdRange> CpuTier::cold_range(SlotRange range) const {
  if (ledger_.any_named(range)) return std::nullopt;
  std::uint64_t sum = 0;
  std::uint64_t num_evictable = 0;
  std::uint32_t oldest = 0;
  for (std::uint32_t i = range.first; i < range.end; ++i) {
    if (ledger_.state(SlotId(i)) != SlotState::kEvictable) continue;
    const std::uint32_t age = ledger_.age(SlotId(i));
    oldest = std::max(oldest, age);
    sum += age;
    ++num_evictable;
  }
  if (num_evictable == 0) return ColdRange{range};
  // Free ones are as old as the oldest.
  const std::uint64_t num_free = range.end - range.first - num_evictable;
  sum += num_free * oldest;
  return ColdRange{range, static_cast<std::uint32_t>(sum / (range.end - range.first))};
}

std::optional<std::uint32_t> CpuTier::coldest_age() const {
  MutexLock lock(mutex_);
  std::optional<std::uint32_t> age;
  for (const Segment segment : {Segment::kProbation, Segment::kProtected}) {
    const SlotId slot = ledger_.coldest_of(segment);
    if (slot == SlotLedger::kNoVictim) continue;
    age = std::max(age.value_or(0), ledger_.age(slot));
  }
  return age;
}

std::uint32_t CpuTier::num_slots_in(SlotRange range) const {
  MutexLock lock(mutex_);
  std::uint32_t count = 0;
  for (std::uint32_t slot = range.first; slot < range.end; ++slot) {
    if (ledger_.state(SlotId(slot)) != SlotState::kAbsent) ++count;
  }
  return count;
}

std::uint32_t CpuTier::clock() const {
  MutexLock lock(mutex_);
  return ledger_.clock();
}

}  // namespace kvferry::cpu_tier
