// SPDX-License-Identifier: Apache-2.0
// ObjectStore: chunks, which come and go between the classes, and what an earlier process left.
#include "kvferry/base/check.hpp"
#include "kvferry/base/test_hooks.hpp"
#include "kvferry/lmcache/object_key.hpp"
#include "kvferry/lmcache/object_store.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

namespace kvferry::lmcache {

ObjectStore::ObjectStore(std::unique_ptr<ChunkMemory> memory, cpu_tier::Eviction eviction,
                         DigestFunction digest)
    : memory_(std::move(memory)),
      geometry_(memory_->geometry()),
      digest_(digest),
      chunk_places_(geometry_.num_chunks),
      slabs_(geometry_.num_chunks, {eviction, cpu_tier::Admission::kAlways, 0}) {
  MutexLock lock(mutex_);
  std::iota(chunk_places_.begin(), chunk_places_.end(), 0U);
  // What fits into no other class when there are no more to be had fits into this one.
  classes_.reserve(cpu_tier::SlabTier::kMaxClasses);
  make_class(geometry_.chunk_bytes - kRecordBytes);
  take_ready_chunks();
  if (memory_->contents() == Contents::kKept) recover();
}

ObjectStore::~ObjectStore() = default;

void ObjectStore::take_ready_chunks() {
  const std::uint32_t num_ready = memory_->num_ready();
  if (num_ready == num_ready_) return;
  slabs_.grow_to(num_ready);
  num_ready_ = num_ready;
}

std::uint32_t ObjectStore::num_slots_in_chunk(const SizeClass& of, std::uint32_t chunk) {
  return slabs_.tier(of.id).num_slots_in(
      {chunk * of.slots_per_chunk, (chunk + 1) * of.slots_per_chunk});
}

void ObjectStore::follow_chunks(SlabClassId reserved_for) {
  const SizeClass& mine = classes_[reserved_for.value()];
  if (slabs_.tier(mine.id).snapshot().num_slots == mine.num_slots_seen) return;
  for (std::uint32_t chunk = 0; chunk < num_ready_; ++chunk) {
    std::atomic<std::uint64_t>& bytes = memory_->slot_bytes()[chunk_places_[chunk]];
    const std::uint64_t held_by = bytes.load(std::memory_order_relaxed);
    if (held_by == mine.slot_bytes) continue;
    if (num_slots_in_chunk(mine, chunk) == 0) {
      if (held_by == 0 || num_slots_in_chunk(classes_[class_of_bytes_.at(held_by)], chunk) != 0) {
        continue;
      }
      clear_chunk(chunk);
      continue;
    }
    clear_chunk(chunk);
    // Where its records are to be, another class may have had slots.
    free_all_records(chunk_places_[chunk], mine.slot_bytes);
    KVFERRY_PAUSE_POINT("lmcache.chunk_was_cleared");
    bytes.store(mine.slot_bytes, std::memory_order_release);
  }
  for (SizeClass& one : classes_) one.num_slots_seen = slabs_.tier(one.id).snapshot().num_slots;
}

void ObjectStore::clear_chunk(std::uint32_t chunk) {
  const std::uint32_t place = chunk_places_[chunk];
  std::atomic<std::uint64_t>& bytes = memory_->slot_bytes()[place];
  const std::uint64_t slot_bytes = bytes.load(std::memory_order_relaxed);
  if (slot_bytes == 0) return;
  // First the records: whoever finds the size finds them as they are.
  free_all_records(place, slot_bytes);
  bytes.store(0, std::memory_order_release);
}

void ObjectStore::free_all_records(std::uint32_t place, std::uint64_t slot_bytes) {
  for (std::uint32_t i = 0; i < slots_per_chunk(geometry_, slot_bytes); ++i) {
    memory_->record(place, i).word.store(0, std::memory_order_relaxed);
  }
}

StoreSnapshot ObjectStore::snapshot() const {
  MutexLock lock(mutex_);
  const cpu_tier::SlabSnapshot slabs = slabs_.snapshot();
  StoreSnapshot now;
  now.ready_bytes = slabs.num_chunks * geometry_.chunk_bytes;
  now.num_refused_total = num_refused_;
  now.num_size_classes = static_cast<std::uint32_t>(slabs.classes.size());
  for (const SizeClass& one : classes_) {
    const cpu_tier::TierSnapshot& tier = slabs.classes[one.id.value()].tier;
    now.num_objects += std::uint64_t{tier.num_evictable} + tier.num_leased;
    now.slot_bytes += (tier.num_slots - tier.num_free) * one.slot_bytes;
    now.num_stored_total += tier.num_committed_total;
    now.num_evicted_total += tier.num_evicted_total;
  }
  return now;
}

void ObjectStore::check_invariants() const {
  MutexLock lock(mutex_);
  slabs_.check_invariants();
  const cpu_tier::SlabSnapshot slabs = slabs_.snapshot();
  std::vector<std::uint64_t> num_readable(classes_.size());
  std::vector<std::uint64_t> num_writing(classes_.size());
  for (std::uint32_t chunk = 0; chunk < num_ready_; ++chunk) {
    const std::uint32_t place = chunk_places_[chunk];
    const std::uint64_t bytes = memory_->slot_bytes()[place].load();
    const std::uint32_t count = bytes == 0 ? 0 : slots_per_chunk(geometry_, bytes);
    for (std::uint32_t i = 0; i < count; ++i) {
      const RecordState state = SlotRecord::state_of(memory_->record(place, i).word.load());
      const std::uint32_t id = class_of_bytes_.at(bytes);
      if (state == RecordState::kReadable) ++num_readable[id];
      if (state == RecordState::kWriting) ++num_writing[id];
    }
  }
  for (const SizeClass& one : classes_) {
    const std::uint32_t id = one.id.value();
    const cpu_tier::TierSnapshot& tier = slabs.classes[id].tier;
    KVFERRY_CHECK(num_readable[id] == std::uint64_t{tier.num_evictable} + tier.num_leased &&
                      num_writing[id] == tier.num_writable,
                  "the records of slots of " + std::to_string(one.slot_bytes) + " bytes say " +
                      std::to_string(num_readable[id]) + " readable and " +
                      std::to_string(num_writing[id]) + " writing, the tier " +
                      std::to_string(tier.num_evictable + tier.num_leased) + " and " +
                      std::to_string(tier.num_writable));
  }
}

}  // namespace kvferry::lmcache
