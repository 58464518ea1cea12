// SPDX-License-Identifier: Apache-2.0
// The assignment of chunks to classes.
#include "kvferry/base/check.hpp"
#include "kvferry/cpu_tier/memory/slab_geometry.hpp"
#include "kvferry/cpu_tier/slots/tier.hpp"

#include "cold_ranges.hpp"
#include "slab_class.hpp"

#include <algorithm>
#include <string>

namespace kvferry::cpu_tier {
namespace {

/// A chunk changes its class when it has lain unused for this many times as long as the other
/// class's blocks live, and some marks more. So no chunk goes back and forth between two similar
/// classes.
constexpr std::uint32_t kTimesOlder = 2;
constexpr std::uint32_t kMarksOlder = 2;

/// Chunks that one reservation looks at, if it does not know which ones are cold. A look ends at
/// the first named slot.
constexpr std::uint32_t kMostLooked = 256;

/// Chunks that one reservation takes without getting a free slot, because their old contents are
/// still in use, or worth keeping.
constexpr int kMostVain = 8;

/// The number of slots of the range that are not absent.
std::uint32_t num_present(const SlotTable& table, SlotRange range) {
  std::uint32_t count = 0;
  for (std::uint32_t slot = range.first; slot < range.end; ++slot) {
    if (table.state(SlotId(slot)) != SlotState::kAbsent) ++count;
  }
  return count;
}

}  // namespace

void Tier::grow_to(std::uint32_t num_chunks) {
  MutexLock lock(mutex_);
  KVFERRY_CHECK(num_chunks >= class_of_chunk_.size() && num_chunks <= max_chunks_,
                "grow_to(" + std::to_string(num_chunks) + ") of a tier of " +
                    std::to_string(class_of_chunk_.size()) + " chunks, at most " +
                    std::to_string(max_chunks_));
  class_of_chunk_.resize(num_chunks, kNoClass);
  peers_->grow_to(num_chunks);
  attach_free();
}

void Tier::attach_free() {
  if (!first_gets_all_) return;
  while (peers_->num_free_chunks() > 0) {
    const bool attached = attach(0, peers_->take_chunks(peers_->num_free_chunks()));
    KVFERRY_CHECK(attached, "chunks that only this tier has cannot be divided");
  }
}

void Tier::make_room(std::uint32_t of, std::uint32_t count) {
  SlabClass& mine = *classes_[of];
  std::uint32_t num_free = mine.count(SlotState::kFree);
  while (num_free < count) {
    const std::optional<std::uint32_t> num_added = add_chunk(of);
    if (!num_added) break;
    num_free += *num_added;
  }
  if (num_free >= count || num_classes_ == 1) return;

  const auto gain = [&](ChunkId chunk) KVFERRY_REQUIRES(mutex_) {
    if (!attach(of, {chunk, 1})) return;
    ++mine.num_gained_total;
    num_free += mine.slots_per_chunk;
  };
  const std::uint32_t num_evictable = mine.count(SlotState::kEvictable);
  while (num_free + num_evictable < count) {
    std::optional<ChunkId> chunk = detach_coldest(of, 0);
    if (!chunk) chunk = detach_any(of);
    if (!chunk) return;
    gain(*chunk);
  }
  const std::uint64_t num_evicted = mine.slots.num_evicted_total();
  if (num_free >= count || num_evicted - mine.num_evicted_at_gain < mine.slots_per_chunk) return;
  const std::uint32_t age =
      mine.ages.marks_since(mine.clock(), age_of_coldest(mine.slots.table().lists()).value_or(0));
  if (const auto chunk = detach_coldest(of, kTimesOlder * age + kMarksOlder)) gain(*chunk);
  mine.num_evicted_at_gain = num_evicted;
}

std::optional<std::uint32_t> Tier::add_chunk(std::uint32_t of) {
  for (int attempt = 0; attempt < kMostVain; ++attempt) {
    const TakenChunks taken = peers_->take_chunks(1);
    if (taken.count == 0) break;
    const std::uint8_t its = class_in(taken);
    SlabClass& getting = *classes_[its == kNoClass ? of : its];
    const std::uint32_t num_free = getting.count(SlotState::kFree);
    if (its == kNoClass) {
      if (!attach(of, taken)) continue;
    } else if (getting.slots.adopt(getting.range_of(taken))) {
      class_of_chunk_[taken.first.value()] = its;
      ++getting.num_chunks;
    } else {
      peers_->give_up(taken.first);
      continue;
    }
    // It is 0 if the old contents are in use, or if all words of the chunk are damaged.
    const std::uint32_t num_added = getting.count(SlotState::kFree) - num_free;
    if (&getting == classes_[of].get() && num_added > 0) return num_added;
  }
  ++num_wanted_;
  return std::nullopt;
}

std::uint8_t Tier::class_in(const TakenChunks& taken) const {
  if (!taken.holds) return kNoClass;
  for (std::uint32_t i = 0; i < num_classes_; ++i) {
    if (classes_[i]->shape == *taken.holds) return static_cast<std::uint8_t>(i);
  }
  return kNoClass;
}

bool Tier::attach(std::uint32_t of, const TakenChunks& chunks) {
  SlabClass& mine = *classes_[of];
  if (!peers_->divide(chunks, mine.shape)) return false;
  std::fill_n(class_of_chunk_.begin() + chunks.first.value(), chunks.count,
              static_cast<std::uint8_t>(of));
  mine.num_chunks += chunks.count;
  mine.slots.add(mine.range_of(chunks));
  return true;
}

bool Tier::detach(ChunkId chunk) {
  SlabClass& from = *classes_[class_of_chunk_[chunk.value()]];
  if (!from.slots.remove(from.range_of(chunk))) return false;
  class_of_chunk_[chunk.value()] = kNoClass;
  --from.num_chunks;
  return true;
}

std::optional<ChunkId> Tier::detach_coldest(std::uint32_t for_class, std::uint32_t least_age) {
  std::optional<ChunkId> coldest;
  for (std::uint32_t i = 0; i < num_classes_; ++i) {
    const SlabClass& from = *classes_[i];
    if (i == for_class || from.num_chunks == 0) continue;
    const std::optional<ColdRange> range = coldest_range(from.slots.table(), from.slots_per_chunk);
    if (!range) continue;
    const std::uint32_t age =
        range->age ? from.ages.marks_since(from.clock(), *range->age) : TurnoverClock::kMostAge + 1;
    if (age < least_age || (coldest && age == least_age)) continue;
    least_age = age;
    coldest = place_of(SlotId(range->slots.first), from.slots_per_chunk).chunk;
  }
  // If a peer reads a slot of it, and be it for ever, the next search finds another chunk.
  if (!coldest || !detach(*coldest)) return std::nullopt;
  return coldest;
}

std::optional<ChunkId> Tier::detach_any(std::uint32_t for_class) {
  const auto num_chunks = static_cast<std::uint32_t>(class_of_chunk_.size());
  for (std::uint32_t i = 0; i < std::min(kMostLooked, num_chunks); ++i) {
    const ChunkId chunk(next_looked_ % num_chunks);
    next_looked_ = chunk.value() + 1;
    const std::uint8_t its = class_of_chunk_[chunk.value()];
    if (its != for_class && its < num_classes_ && detach(chunk)) return chunk;
  }
  return std::nullopt;
}

void Tier::count_turnover(std::uint32_t of, std::size_t num_slots) {
  if (first_gets_all_ && num_classes_ == 1) return;  // There is no class to compare with.
  num_turned_over_ += static_cast<double>(num_slots) / classes_[of]->slots_per_chunk;
  const double mark = static_cast<double>(num_attached()) / TurnoverClock::kMarksPerTurnover;
  for (; num_turned_over_ >= mark && mark > 0; num_turned_over_ -= mark) {
    for (std::uint32_t i = 0; i < num_classes_; ++i) {
      classes_[i]->ages.mark(classes_[i]->clock());
    }
  }
}

std::uint32_t Tier::num_attached() const {
  std::uint32_t sum = 0;
  for (std::uint32_t i = 0; i < num_classes_; ++i) sum += classes_[i]->num_chunks;
  return sum;
}

TierSnapshot Tier::snapshot() const {
  MutexLock lock(mutex_);
  TierSnapshot sum;
  for (std::uint32_t i = 0; i < num_classes_; ++i) sum += classes_[i]->slots.snapshot();
  const std::uint32_t num_unused =
      num_classes_ == 0 ? 0 : peers_->num_free_chunks() * classes_[0]->slots_per_chunk;
  sum.num_free += num_unused;
  sum.num_slots += num_unused;
  return sum;
}

SlabSnapshot Tier::slab_snapshot() const {
  MutexLock lock(mutex_);
  const std::uint32_t num_free = peers_->num_free_chunks();
  SlabSnapshot now{num_attached() + num_free, num_free, {}};
  for (std::uint32_t i = 0; i < num_classes_; ++i) {
    const SlabClass& one = *classes_[i];
    now.classes.push_back(
        {one.slots_per_chunk, one.num_chunks, one.num_gained_total, one.slots.snapshot()});
  }
  return now;
}

void Tier::check_invariants() const {
  MutexLock lock(mutex_);
  std::vector<std::uint32_t> num_attached(num_classes_);
  std::size_t num_free = 0;
  std::size_t num_retired = 0;
  for (const std::uint8_t its : class_of_chunk_) {
    if (its == kNoClass) {
      ++num_free;
    } else if (its != kRetired) {
      ++num_attached.at(its);
    } else {
      ++num_retired;
    }
  }
  KVFERRY_CHECK(num_retired == num_retired_, "retired chunks were miscounted");
  KVFERRY_CHECK(peers_->outlives_tier() || num_free == peers_->num_free_chunks(),
                "a chunk of no class is lost");
  for (std::uint32_t i = 0; i < num_classes_; ++i) {
    const SlabClass& one = *classes_[i];
    one.slots.check_invariants();
    KVFERRY_CHECK(one.num_chunks == num_attached[i] &&
                      one.slots.snapshot().num_slots == num_attached[i] * one.slots_per_chunk,
                  "class " + std::to_string(i) + " has other slots than its chunks have");
    for (ChunkId chunk; chunk.value() < class_of_chunk_.size(); chunk = chunk.next()) {
      KVFERRY_CHECK(
          num_present(one.slots.table(), one.range_of(chunk)) ==
              (class_of_chunk_[chunk.value()] == i ? one.slots_per_chunk : 0),
          "the slots of chunk " + std::to_string(chunk.value()) + " are not all of one class");
    }
  }
}

}  // namespace kvferry::cpu_tier
