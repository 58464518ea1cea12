// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/slots/retirable_chunks.hpp"

#include "kvferry/base/check.hpp"
#include "kvferry/cpu_tier/memory/slab_geometry.hpp"

#include "cold_ranges.hpp"
#include "slab_class.hpp"

#include <algorithm>
#include <string>

namespace kvferry::cpu_tier {
namespace {

/// How many runs are compared to find the coldest one, by class and segment, and how many slots are
/// looked at to find these runs.
constexpr std::size_t kComparedRuns = 16;
constexpr std::size_t kMostSlots = 1024;

/// Runs that are looked at if none of these can be retired. A look ends at the first named slot.
constexpr std::uint32_t kMostRuns = 64;

/// Visits slots of one class in the order in which they are likely to lie in a cold run. `visit`
/// runs under the lock: the analysis does not see through a parameter.
template <class Visit>
void visit_coldest(const SlotLists& lists, const Visit& visit) KVFERRY_NO_THREAD_SAFETY_ANALYSIS {
  const SlotId free = lists.longest_free();
  if (free != SlotLists::kNoSlot) visit(free);
  for (const Segment segment : {Segment::kProbation, Segment::kProtected}) {
    std::size_t num_new = 0;
    SlotId slot = lists.coldest_of(segment);
    for (std::size_t step = 0;
         step < kMostSlots && num_new < kComparedRuns && slot != SlotLists::kNoSlot; ++step) {
      if (visit(slot)) ++num_new;
      slot = lists.hotter_than(slot);
    }
  }
}

}  // namespace

std::optional<ChunkRange> RetirableChunks::retire_coldest(std::uint32_t run) const {
  KVFERRY_CHECK(run > 0, "a run has no chunks");
  MutexLock lock(tier_->mutex_);
  if (tier_->peers_->outlives_tier()) return std::nullopt;
  std::optional<ChunkRange> chunks = tier_->coldest_run(run);
  if (!chunks) chunks = tier_->any_run(run);
  if (!chunks) return std::nullopt;
  const std::uint32_t end = chunks->end.value();
  for (std::uint32_t first = chunks->begin.value(); first < end;) {
    const std::uint8_t its = tier_->class_of_chunk_[first];
    TakenChunks alike{ChunkId(first), 1};
    while (first + alike.count < end && tier_->class_of_chunk_[first + alike.count] == its)
      ++alike.count;
    first += alike.count;
    if (its == Tier::kNoClass) continue;
    Tier::SlabClass& from = *tier_->classes_[its];
    const bool removed = from.slots.remove(from.range_of(alike));
    KVFERRY_CHECK(removed, "a slot that is not named cannot be evicted");
    from.num_chunks -= alike.count;
  }
  const std::uint32_t count = end - chunks->begin.value();
  std::fill_n(tier_->class_of_chunk_.begin() + chunks->begin.value(), count, Tier::kRetired);
  tier_->num_retired_ += count;
  const bool taken = tier_->peers_->take_out(chunks->begin, count);
  KVFERRY_CHECK(taken, "chunks that only this tier has cannot be taken out of use");
  return chunks;
}

void RetirableChunks::restore(ChunkRange chunks) const {
  MutexLock lock(tier_->mutex_);
  const std::uint32_t end = chunks.end.value();
  KVFERRY_CHECK(end <= tier_->max_chunks_, "chunk " + std::to_string(end) + " of " +
                                               std::to_string(tier_->max_chunks_) +
                                               " is to be usable");
  if (const std::size_t size = tier_->class_of_chunk_.size(); size < end) {
    tier_->class_of_chunk_.resize(end, Tier::kRetired);
    tier_->num_retired_ += end - size;
  }
  for (ChunkId chunk = chunks.begin; chunk < chunks.end; chunk = chunk.next()) {
    KVFERRY_CHECK(tier_->class_of_chunk_[chunk.value()] == Tier::kRetired,
                  "chunk " + std::to_string(chunk.value()) + " is in use");
    tier_->class_of_chunk_[chunk.value()] = Tier::kNoClass;
  }
  tier_->num_retired_ -= end - chunks.begin.value();
  tier_->peers_->put_back(chunks.begin, end - chunks.begin.value());
  tier_->attach_free();
}

std::optional<ChunkRange> Tier::run_of(ChunkId chunk, std::uint32_t run) const {
  const std::uint32_t first = chunk.value() / run * run;
  const std::uint32_t end = std::min(first + run, max_chunks_);
  if (end > class_of_chunk_.size()) return std::nullopt;
  return ChunkRange{ChunkId(first), ChunkId(end)};
}

std::uint32_t Tier::common_age(const SlabClass& of, std::uint32_t age) const {
  return num_classes_ == 1 ? age : of.ages.marks_since(of.clock(), age);
}

std::optional<std::uint32_t> Tier::age_of(ChunkRange chunks, std::uint32_t age_of_free) const {
  std::uint32_t least = age_of_free;
  for (ChunkId chunk = chunks.begin; chunk < chunks.end; chunk = chunk.next()) {
    const std::uint8_t its = class_of_chunk_[chunk.value()];
    if (its == kRetired) return std::nullopt;
    if (its == kNoClass) continue;
    const SlabClass& one = *classes_[its];
    const auto range = cold_range(one.slots.table(), one.range_of(chunk));
    if (!range) return std::nullopt;
    if (range->age) least = std::min(least, common_age(one, range->least_age));
  }
  return least;
}

std::optional<ChunkRange> Tier::coldest_run(std::uint32_t run) const {
  // Free slots count as old as the oldest slot, and chunks of no class as older.
  std::uint32_t age_of_free = 0;
  for (std::uint32_t i = 0; i < num_classes_; ++i) {
    const SlabClass& one = *classes_[i];
    const auto age = age_of_coldest(one.slots.table().lists());
    age_of_free = std::max(age_of_free, age ? common_age(one, *age) : 0);
  }
  std::optional<ChunkRange> coldest;
  std::uint32_t most = 0;
  ChunkId last(max_chunks_);
  // Checks whether the chunk's run differs from the last one.
  const auto consider = [&](ChunkId chunk) KVFERRY_REQUIRES(mutex_) {
    const std::optional<ChunkRange> chunks = run_of(chunk, run);
    if (!chunks || chunks->begin == last) return false;
    last = chunks->begin;
    const std::optional<std::uint32_t> age = age_of(*chunks, age_of_free);
    if (age && (!coldest || *age > most)) {
      coldest = chunks;
      most = *age;
    }
    return true;
  };
  if (peers_->num_free_chunks() > 0) {
    const auto unowned = std::find(class_of_chunk_.rbegin(), class_of_chunk_.rend(), kNoClass);
    const auto number = static_cast<std::uint32_t>(class_of_chunk_.rend() - unowned - 1);
    static_cast<void>(consider(ChunkId(number)));
  }
  for (std::uint32_t i = 0; i < num_classes_; ++i) {
    const SlabClass& one = *classes_[i];
    visit_coldest(one.slots.table().lists(), [&](SlotId slot) KVFERRY_REQUIRES(mutex_) {
      return consider(place_of(slot, one.slots_per_chunk).chunk);
    });
  }
  return coldest;
}

std::optional<ChunkRange> Tier::any_run(std::uint32_t run) {
  const auto num_chunks = static_cast<std::uint32_t>(class_of_chunk_.size());
  const std::uint32_t num_runs = (num_chunks + run - 1) / run;
  for (std::uint32_t i = 0; i < std::min(kMostRuns, num_runs); ++i) {
    const ChunkId first(next_run_ % num_runs * run);
    ++next_run_;
    const std::optional<ChunkRange> chunks = run_of(first, run);
    if (chunks && age_of(*chunks, 0)) return chunks;
  }
  return std::nullopt;
}

}  // namespace kvferry::cpu_tier
