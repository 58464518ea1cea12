// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/divisor.hpp"
#include "kvferry/base/ids.hpp"
#include "kvferry/cpu_tier/memory/slab_geometry.hpp"
#include "kvferry/cpu_tier/peers/guest_slots.hpp"
#include "kvferry/cpu_tier/peers/slot_word.hpp"
#include "kvferry/cpu_tier/peers/tier_directory.hpp"
#include "kvferry/cpu_tier/slots/block_key.hpp"

#include <optional>

namespace kvferry::cpu_tier {

/// The slots of one slab class of a shared tier, numbered as in SlotClass: slot s is in chunk s /
/// num_slots, whichever engine owns that chunk. A view; threads as in TierDirectory.
class SharedSlots final : public GuestLeases {
 public:
  SharedSlots(TierDirectory& directory, const ChunkShape& shape)
      : directory_(&directory), shape_(shape), chunk_slots_(shape.num_slots) {}

  // ---- own slots ----

  /// free -> filling. Returns false if it is not free.
  [[nodiscard]] bool begin_fill(SlotId slot) const {
    return directory_->begin_fill(place_of(slot));
  }
  /// filling -> readable by all, in two steps: the first step fetches what the second one changes.
  [[nodiscard]] TierDirectory::HintChange prepare_publish(SlotId slot, const BlockKey& key) const {
    return directory_->prepare_publish(place_of(slot), key);
  }
  void publish(SlotId slot, const BlockKey& key, const TierDirectory::HintChange& change) const {
    directory_->publish(place_of(slot), key, change);
  }
  /// filling -> free: no device can write it any more.
  void abandon(SlotId slot) const;
  /// readable -> filling. Returns false if another instance reads it, or has read it since the last
  /// call for it; then it counts as just used.
  [[nodiscard]] bool refill_unused(SlotId slot) const;
  /// readable -> free. Returns false if another instance reads it.
  [[nodiscard]] bool evict(SlotId slot) const { return directory_->evict(place_of(slot)); }
  /// readable -> free, or dying if another instance reads it.
  [[nodiscard]] SharedState forget(SlotId slot) const {
    return directory_->slot(place_of(slot)).forget();
  }
  /// Whether a slot that this instance cannot use is free by now: no engine reads it if it is
  /// dying, its grace period is over if it is quarantined. As TierDirectory::make_free().
  [[nodiscard]] bool try_free(SlotId slot) const { return directory_->make_free(place_of(slot)); }
  /// The bytes of a slot, own or guest, are not what was stored: no instance uses it any more.
  void withdraw(SlotId slot) const { directory_->withdraw(place_of(slot)); }
  /// Calls `visit` for the readable slots of own chunks that other instances have withdrawn since
  /// the last call.
  template <class Visit>
  void visit_withdrawn(Visit visit) const;
  [[nodiscard]] SlotWord word(SlotId slot) const { return directory_->slot(place_of(slot)).load(); }
  /// The key of a readable slot, if it is complete and of this name space.
  [[nodiscard]] std::optional<BlockKey> key_of(SlotId slot) const {
    return directory_->records().key_of(place_of(slot));
  }

  // ---- slots of others ----

  /// Leases the slot of another instance, or without an owner, that holds the key.
  [[nodiscard]] std::optional<SlotId> lease(const BlockKey& key) override;
  void end_lease(SlotId slot) override { directory_->leases().end_lease(place_of(slot)); }
  void leave_lease(SlotId slot) override { directory_->leases().leave_lease(place_of(slot)); }
  void shun(SlotId slot) override { directory_->leases().shun(place_of(slot)); }
  /// Prefetches what refill_unused(), begin_fill() and publish() change in the slot.
  void prefetch(SlotId slot) const { directory_->prefetch(place_of(slot)); }
  /// Prefetches what publish() changes in the hints, for a key that may have no slot yet.
  void prefetch_to_change(const BlockKey& key) const { directory_->prefetch_to_change(key); }
  /// Prefetches what lease() and has() need first.
  void prefetch(const BlockKey& key) const { directory_->leases().prefetch(key); }
  /// Prefetches what lease() and has() need next.
  void prefetch_slots(const BlockKey& key) const { directory_->leases().prefetch_slots(key); }
  /// Whether lease() finds nothing now.
  [[nodiscard]] bool is_alone() const { return directory_->leases().is_alone(); }
  /// Whether lease() would probably succeed.
  [[nodiscard]] bool has(const BlockKey& key) const { return directory_->leases().has(key); }

 private:
  [[nodiscard]] SlotPlace place_of(SlotId slot) const {
    return {ChunkId(chunk_slots_.quotient(slot.value())), chunk_slots_.remainder(slot.value())};
  }

  TierDirectory* directory_;
  ChunkShape shape_;
  Divisor chunk_slots_;
};

template <class Visit>
void SharedSlots::visit_withdrawn(Visit visit) const {
  const TierRecords& records = directory_->records();
  for (ChunkId chunk; chunk.value() < records.reach(); chunk = chunk.next()) {
    if (!records.owns(chunk) || records.shape_of(chunk) != shape_) continue;
    if (!directory_->take_withdrawals(chunk)) continue;
    for (std::uint32_t i = 0; i < shape_.num_slots; ++i) {
      const SlotWord word = records.slot({chunk, i}).load();
      if (word.withdrawn() && word.state() == SharedState::kReadable) {
        visit(SlotId(chunk.value() * shape_.num_slots + i));
      }
    }
  }
}

}  // namespace kvferry::cpu_tier
