// SPDX-License-Identifier: Apache-2.0
// TierDirectory: the repair of metadata that were damaged while no instance used the tier, which
// can happen to a kept file. Nothing here stops the process, and it trusts nothing that the
// protocol cannot produce. A slot, a chunk or a record with such words is repaired, and counted.
#include "kvferry/cpu_tier/peers/member_lock.hpp"
#include "kvferry/cpu_tier/peers/tier_directory.hpp"

#include <string>

namespace kvferry::cpu_tier {

bool TierDirectory::make_free(SlotPlace place) {
  SharedSlot each = slot(place);
  const SlotWord word = each.load();
  // A withdrawn slot had a key, which stays.
  const bool is_nonsense =
      word.withdrawn() && word.lessees() == 0 && !records_.has_key(word, place);
  if (word.is_sound() && !is_nonsense) {
    switch (word.state()) {
      case SharedState::kFree:
        return true;
      case SharedState::kReadable:
        return each.evict();
      case SharedState::kDying:
        return each.free_dying();
      case SharedState::kQuarantined:
        return free_quarantined(place);
      case SharedState::kFilling:
        break;
    }
  }
  begin_quarantine(place.chunk);
  if (each.doubt()) note_damage();
  return false;
}

void TierDirectory::mend_slots(ChunkId chunk, std::uint32_t first, std::uint32_t end) {
  for (std::uint32_t i = first; i < end; ++i) {
    SharedSlot each = slot({chunk, i});
    const SlotWord word = each.load();
    if (word.state() == SharedState::kFree && word.is_sound()) continue;
    // A slot that no instance reads is not written by any either.
    if (each.evict()) continue;
    begin_quarantine(chunk);
    if (each.doubt()) note_damage();
  }
}

// A record in use with an invalid lock has no owner, because no process can hold that lock. With a
// unique lock that no process holds either, it looks like the record of any dead instance, and one
// sweeper at a time cleans up after it.
void TierDirectory::mend_instances() {
  for (std::uint32_t i = 0; i < kMaxInstances; ++i) {
    const std::uint64_t base = records_.instances()[i].lock.load(std::memory_order_acquire);
    if (base != 0 && !is_lock_base(base) && declare_dead(InstanceId(i), base)) note_damage();
  }
}

bool TierDirectory::declare_dead(InstanceId instance, std::uint64_t base) {
  const LockBase nobody = lock_base_of("damaged record " + std::to_string(instance.value()));
  return records_.instances()[instance.value()].lock.compare_exchange_strong(
      base, nobody, std::memory_order_acq_rel);
}

// An instance claims its record before it owns a chunk, and owns none when it frees the record.
bool TierDirectory::is_stale(ChunkOwner owner) const {
  if (owner == records_.own()) return true;
  for (std::uint32_t i = 0; i < kMaxInstances; ++i) {
    const InstanceRecord& record = records_.instances()[i];
    if (record.lock.load(std::memory_order_acquire) == 0) continue;
    const std::uint64_t epoch = record.epoch.load(std::memory_order_relaxed);
    if (owner == ChunkOwner::of(InstanceId(i), epoch)) return false;
  }
  return true;
}

// This is called before this instance owns or leases anything. A record that says otherwise is
// damaged, or was left by an instance whose record was damaged.
void TierDirectory::mend_chunks() {
  std::uint32_t lessees = 0;
  for (ChunkId chunk; chunk.value() < records_.shape().num_chunks; chunk = chunk.next()) {
    ChunkRecord& record = records_.chunk(chunk);
    std::uint64_t owner = record.owner.load(std::memory_order_acquire);
    const bool is_mine_to_mend =
        owner != 0 && is_stale({owner}) &&
        record.owner.compare_exchange_strong(owner, records_.own().bits, std::memory_order_acq_rel);
    const std::uint32_t num_slots = records_.shape_of(chunk).num_slots;
    for (std::uint32_t i = 0; i < num_slots; ++i) {
      SharedSlot each = slot({chunk, i});
      const SlotWord word = each.load();
      if (word.is_leased_by(self())) each.end_lease(self());
      lessees |= word.lessees();
      if (is_mine_to_mend && word.state() == SharedState::kFilling) {
        begin_quarantine(chunk);
        static_cast<void>(each.quarantine());
      }
    }
    if (!is_mine_to_mend) continue;
    note_damage();
    record.owner.store(0, std::memory_order_release);
  }
  end_stray_leases(lessees);
}

// An instance claims its record before it leases anything, and has no lease when it frees it. So an
// instance has no lease if its record is free now, and was free when its bit was seen, or has been
// free since then.
void TierDirectory::end_stray_leases(std::uint32_t lessees) {
  bool any = false;
  for (std::uint32_t i = 0; i < kMaxInstances; ++i) {
    if ((lessees >> i & 1U) == 0 || !declare_dead(InstanceId(i), 0)) continue;
    note_damage();
    any = true;
  }
  if (any) static_cast<void>(sweep());
}

}  // namespace kvferry::cpu_tier
