// SPDX-License-Identifier: Apache-2.0
// TierDirectory: which instances live, what dead ones leave, and what instances tell each other.
#include "kvferry/base/check.hpp"
#include "kvferry/base/error.hpp"
#include "kvferry/base/test_hooks.hpp"
#include "kvferry/cpu_tier/peers/tier_directory.hpp"

#include "chunk_fairness.hpp"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

namespace kvferry::cpu_tier {
namespace {

/// How long the announcement of a stopped instance is valid.
constexpr std::chrono::seconds kMostDemandTime{5};

}  // namespace

TierDirectory::~TierDirectory() {
  const std::uint64_t num_leases = leases_.num_leases();
  KVFERRY_CHECK(num_leases == 0, std::to_string(num_leases) + " leases were not ended");
  KVFERRY_PAUSE_POINT("tier_directory.leaving");
  // A living rank may have copies under way, and may begin more that it was ordered to make. It is
  // not told to hurry: the instance that sweeps after its end does the rest.
  if (!lock_->try_take_all()) return;
  SweepReport report;
  clean_up_after(self(), report);
}

void TierDirectory::take_name(const Identity& identity) {
  const LockBase base = lock_base_of(identity.name);
  // The second attempt is for a process that has died since the first one.
  for (int attempt = 0; attempt < 2; ++attempt) {
    lock_.reset();
    static_cast<void>(sweep());
    lock_.emplace(file_, base, 0);
    const auto is_of_name = [base](const InstanceRecord& record) {
      return record.lock.load(std::memory_order_acquire) == base;
    };
    if (std::none_of(records_.instances().begin(), records_.instances().end(), is_of_name)) return;
  }
  throw ResourceError("the shared tier " + file_.path().string() +
                      " has ranks of an earlier engine " + identity.name +
                      ", whose scheduler is gone; end these processes, or give this engine an "
                      "engine_id of its own");
}

// ---- instances that are gone ----

SweepReport TierDirectory::sweep() {
  SweepReport report;
  for (std::uint32_t i = 0; i < kMaxInstances; ++i) {
    const std::uint64_t base = records_.instances()[i].lock.load(std::memory_order_acquire);
    if (base == 0 || base % kMaxMembers != 0) continue;
    const auto dead = DeathLock::try_take(file_, base);
    // Meanwhile another sweeper may have been there, and another instance may have joined.
    if (!dead || records_.instances()[i].lock.load(std::memory_order_acquire) != base) continue;
    clean_up_after(InstanceId(i), report);
    ++report.num_instances;
  }
  return report;
}

void TierDirectory::clean_up_after(InstanceId gone, SweepReport& report) {
  InstanceRecord& record = records_.instances()[gone.value()];
  const ChunkOwner owner = ChunkOwner::of(gone, record.epoch.load(std::memory_order_relaxed));
  const bool never_ends = record.copies_never_end.load(std::memory_order_relaxed) != 0;
  for (ChunkId chunk; chunk.value() < records_.shape().num_chunks; chunk = chunk.next()) {
    ChunkRecord& of_chunk = records_.chunk(chunk);
    const bool is_its = of_chunk.owner.load(std::memory_order_acquire) == owner.bits;
    const std::uint32_t num_slots = records_.shape_of(chunk).num_slots;
    bool is_noted = false;
    for (std::uint32_t i = 0; i < num_slots; ++i) {
      SharedSlot each = slot({chunk, i});
      const SlotWord word = each.load();
      if (word.is_leased_by(gone)) {
        each.end_lease(gone);
        ++report.num_ended_leases;
      }
      if (!is_its) continue;
      if (word.state() == SharedState::kFilling) {
        if (!std::exchange(is_noted, true)) {
          of_chunk.num_quarantines.fetch_add(1, std::memory_order_relaxed);
          // The next owner sees it, because it takes the chunk after this.
          if (never_ends) of_chunk.quarantine_never_ends.store(1, std::memory_order_relaxed);
        }
        KVFERRY_PAUSE_POINT("tier_directory.in_a_sweep");
        report.num_quarantined_slots += each.quarantine() ? 1 : 0;
      } else if (word.state() == SharedState::kDying) {
        static_cast<void>(each.free_dying());
      }
    }
    if (!is_its) continue;
    of_chunk.owner.store(0, std::memory_order_release);
    ++report.num_orphaned_chunks;
  }
  KVFERRY_PAUSE_POINT("tier_directory.swept_and_not_free");
  record.epoch.fetch_add(1, std::memory_order_relaxed);
  record.lock.store(0, std::memory_order_release);
}

// The quarantine that it sees was set by a process that had proof of the writer's death. So the
// grace period, counted from now on, is never too short. If a number is seen again, it means the
// same slots or fewer.
void TierDirectory::note_quarantine(ChunkId chunk) {
  const std::uint64_t number =
      records_.chunk(chunk).num_quarantines.load(std::memory_order_relaxed);
  SeenQuarantine& seen = seen_quarantines_[chunk.value()];
  if (seen.number != number) seen = {.number = number, .since = now()};
}

void TierDirectory::begin_quarantine(ChunkId chunk) {
  records_.chunk(chunk).num_quarantines.fetch_add(1, std::memory_order_relaxed);
  note_quarantine(chunk);
}

bool TierDirectory::is_over(ChunkId chunk) const {
  const SeenQuarantine& seen = seen_quarantines_[chunk.value()];
  return seen.number && now() - seen.since >= grace_ &&
         records_.chunk(chunk).quarantine_never_ends.load(std::memory_order_relaxed) == 0;
}

std::uint64_t TierDirectory::free_quarantined() {
  std::uint64_t num_freed = 0;
  for (ChunkId chunk; chunk.value() < records_.shape().num_chunks; chunk = chunk.next()) {
    SeenQuarantine& seen = seen_quarantines_[chunk.value()];
    if (seen.is_freed || !owns(chunk) || !is_over(chunk)) continue;
    const std::uint32_t num_slots = records_.shape_of(chunk).num_slots;
    for (std::uint32_t i = 0; i < num_slots; ++i) {
      num_freed += slot({chunk, i}).free_quarantined() ? 1 : 0;
    }
    seen.is_freed = true;
  }
  return num_freed;
}

bool TierDirectory::free_quarantined(SlotPlace place) {
  return owns(place.chunk) && is_over(place.chunk) && slot(place).free_quarantined();
}

// ---- fairness ----

void TierDirectory::tell(std::uint32_t num_wanted_chunks, std::chrono::seconds coldest_age) {
  InstanceRecord& record = records_.own_record();
  record.num_wanted_chunks.store(num_wanted_chunks, std::memory_order_relaxed);
  record.coldest_seconds.store(static_cast<std::uint32_t>(coldest_age.count()),
                               std::memory_order_relaxed);
  record.num_told.fetch_add(1, std::memory_order_relaxed);
}

std::uint32_t TierDirectory::num_chunks_to_give() {
  const Time looked_at = now();
  std::array<ChunkDemand, kMaxInstances> demands;
  for (std::uint32_t i = 0; i < kMaxInstances; ++i) {
    const InstanceRecord& record = records_.instances()[i];
    if (record.lock.load(std::memory_order_relaxed) == 0) continue;
    const std::uint32_t number = record.num_told.load(std::memory_order_relaxed);
    SeenWord& seen = seen_words_[i];
    if (seen.number != number) seen = {number, looked_at};
    const bool is_fresh = number != 0 && looked_at - seen.since < kMostDemandTime;
    demands[i] = {record.weight.load(std::memory_order_relaxed),
                  record.num_chunks.load(std::memory_order_relaxed),
                  is_fresh ? record.num_wanted_chunks.load(std::memory_order_relaxed) : 0,
                  record.coldest_seconds.load(std::memory_order_relaxed)};
  }
  return cpu_tier::num_chunks_to_give(demands, self().value(), records_.shape().num_chunks);
}

}  // namespace kvferry::cpu_tier
