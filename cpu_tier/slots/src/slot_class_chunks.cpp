// SPDX-License-Identifier: Apache-2.0
// Slots whose memory comes and goes: what the tier of one slab class does when chunks move.
#include "kvferry/base/check.hpp"

#include "batches.hpp"
#include "slot_class.hpp"

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

void SlotClass::add(SlotRange range) {
  table_.add(range);
  std::array<SlotId, kStep> slots;
  for (std::uint32_t first = range.first; first < range.end;) {
    const auto count = std::min<std::uint32_t>(kStep, range.end - first);
    for (std::uint32_t i = 0; i < count; ++i) slots[i] = SlotId(first + i);
    set_aside_unless_free(std::span(slots).first(count));
    first += count;
  }
  resize_policy();
  dcheck_conserved();
}

bool SlotClass::remove(SlotRange range) {
  if (table_.any_named(range) || peers_->any_read(range)) return false;
  const std::uint32_t num_keys_before = index_.size();
  bool all_evicted = true;
  std::array<SlotId, kStep> slots;
  for (std::uint32_t first = range.first; first < range.end;) {
    const auto count = std::min<std::uint32_t>(kStep, range.end - first);
    std::size_t num_readable = 0;
    for (std::uint32_t slot = first + count; slot > first; --slot) {
      if (table_.readable(SlotId(slot - 1))) slots[num_readable++] = SlotId(slot - 1);
    }
    const std::span<SlotId> readable = std::span(slots).first(num_readable);
    const std::span<const SlotId> evicted = readable.first(peers_->evict(readable));
    all_evicted = all_evicted && evicted.size() == readable.size();
    for (const SlotId slot : evicted) table_.forget(slot);
    note(evicted, false);
    index_.erase(evicted);
    first += count;
  }
  num_evicted_total_ += num_keys_before - index_.size();
  if (all_evicted) {
    table_.remove(range);
    resize_policy();
  }
  end_forgetting(num_keys_before);
  return all_evicted;
}

bool SlotClass::adopt(SlotRange range) {
  if (!peers_->let_go(range)) {
    ++eviction_epoch_;  // Of the guests that were let go before it.
    return false;
  }
  table_.add(range);
  // From the last to the first: as far as prefixes lie in order, they leave from their tails.
  std::array<std::optional<BlockKey>, kStep> keys;
  std::array<SlotId, kStep> unused;
  for (std::uint32_t end = range.end; end > range.first;) {
    const auto count = std::min<std::uint32_t>(kStep, end - range.first);
    end -= count;
    peers_->read_keys(SlotId(end), std::span(keys).first(count));
    std::size_t num_unused = 0;
    for (std::uint32_t i = count; i-- > 0;) {
      const SlotId slot(end + i);
      SlotId present = BlockIndex::kNoSlot;
      if (keys[i]) {
        index_.find({&*keys[i], 1}, {&present, 1});
        if (peers_->hide({&present, 1})) ++eviction_epoch_;
      }
      if (!keys[i] || present != BlockIndex::kNoSlot) {
        unused[num_unused++] = slot;
        continue;
      }
      table_.make_evictable(slot);
      index_.insert({&*keys[i], 1}, {&slot, 1});
      note({&slot, 1}, true);
    }
    set_aside_unless_free(std::span(unused).first(num_unused));
  }
  resize_policy();
  dcheck_conserved();
  return true;
}

void SlotClass::resize_policy() {
  const std::uint32_t now = table_.num_slots();
  const std::uint32_t change = std::max(now, num_policy_slots_) - std::min(now, num_policy_slots_);
  if (now == 0 || change * kPolicyTolerance < num_policy_slots_) return;
  policy_.resize(now);
  num_policy_slots_ = now;
}

std::optional<ColdRange> SlotClass::coldest_range(std::uint32_t num_slots) const {
  const auto range_of = [num_slots](SlotId slot) {
    const std::uint32_t first = slot.value() / num_slots * num_slots;
    return SlotRange{first, first + num_slots};
  };
  std::optional<ColdRange> coldest;
  const auto consider = [&](SlotId slot) {
    const std::optional<ColdRange> range = cold_range(range_of(slot));
    if (!range) return;
    if (!coldest || !range->age || (coldest->age && *range->age > *coldest->age)) coldest = range;
  };
  const SlotId free = table_.longest_free();
  if (free != SlotTable::kNoVictim) consider(free);
  for (const Segment segment : {Segment::kProbation, Segment::kProtected}) {
    std::uint32_t last = SlotTable::kNoVictim.value();
    std::size_t num_candidates = 0;
    SlotId slot = table_.coldest_of(segment);
    for (std::size_t step = 0; step < kMostSteps && num_candidates < kCandidates; ++step) {
      if (slot == SlotTable::kNoVictim || (coldest && !coldest->age)) break;
      if (const std::uint32_t first = range_of(slot).first; first != last) {
        consider(slot);
        last = first;
        ++num_candidates;
      }
      slot = table_.hotter_than(slot);
    }
  }
  return coldest;
}

std::optional<ColdRange> SlotClass::cold_range(SlotRange range) const {
  if (table_.any_named(range)) return std::nullopt;
  std::uint64_t sum = 0;
  std::uint64_t num_evictable = 0;
  std::uint32_t oldest = 0;
  for (std::uint32_t i = range.first; i < range.end; ++i) {
    if (table_.state(SlotId(i)) != SlotState::kEvictable) continue;
    const std::uint32_t age = table_.age(SlotId(i));
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

std::optional<std::uint32_t> SlotClass::coldest_age() const {
  std::optional<std::uint32_t> age;
  for (const Segment segment : {Segment::kProbation, Segment::kProtected}) {
    const SlotId slot = table_.coldest_of(segment);
    if (slot == SlotTable::kNoVictim) continue;
    age = std::max(age.value_or(0), table_.age(slot));
  }
  return age;
}

std::uint32_t SlotClass::num_slots_in(SlotRange range) const {
  std::uint32_t count = 0;
  for (std::uint32_t slot = range.first; slot < range.end; ++slot) {
    if (table_.state(SlotId(slot)) != SlotState::kAbsent) ++count;
  }
  return count;
}

}  // namespace kvferry::cpu_tier
