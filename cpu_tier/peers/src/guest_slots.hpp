// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/ids.hpp"
#include "kvferry/cpu_tier/memory/huge_page_allocator.hpp"
#include "kvferry/cpu_tier/slots/block_index.hpp"
#include "kvferry/cpu_tier/slots/block_key.hpp"

#include "shared_slots.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace kvferry::cpu_tier {

/// Slots of other instances of a shared tier, or without an owner, that this one found and may
/// read. A guest is leased there from the moment it was found, so that what a lookup has said stays
/// true, and is let go when its last lease here ends, unless a lookup has asked for it since that
/// began; or when no lease here is on it and no lookup has asked for it lately.
///
/// While a guest can be found, the tier's own index leads to it, as to own slots. One thread at a
/// time.
class GuestSlots {
 public:
  /// Slots are below `max_slots`; `index` is the tier's, and outlives this.
  GuestSlots(const SharedSlots& slots, BlockIndex& index, std::uint32_t max_slots);
  /// Lets all go but those left behind; no other is leased here.
  ~GuestSlots();
  GuestSlots(const GuestSlots&) = delete;
  GuestSlots& operator=(const GuestSlots&) = delete;

  /// Whether find() and has() find nothing, whatever the key.
  [[nodiscard]] bool finds_nothing() const { return slots_.is_alone(); }
  /// The slot of a key that was not in the index a moment ago: that of a guest, which is found just
  /// now, and is in the index then; or what came there since, as of a key that is asked for twice.
  [[nodiscard]] std::optional<SlotId> find(const BlockKey& key);
  /// Whether some instance has the key, which is not in the index. Takes nothing.
  [[nodiscard]] bool has(const BlockKey& key) const { return slots_.has(key); }
  /// What find() needs for those of the keys whose slot is BlockIndex::kNoSlot, to be used soon.
  void prefetch(std::span<const BlockKey> keys, std::span<const SlotId> slots) const;

  /// Whether the slot is a guest, which can be found or not.
  [[nodiscard]] bool knows(SlotId slot) const { return guest(slot).position != 0; }
  /// Whether the slot is a guest that can be found. If so, it has been asked for just now.
  bool ask_for(SlotId slot);

  /// One lease of this instance's own on a guest, more or less. Whether the guest has been let go.
  void lease(SlotId slot);
  bool end_lease(SlotId slot);
  /// A lease that will not end while this lives: the guest stays leased for good.
  void leave_behind(SlotId slot);
  /// A guest is not found any more. Whether it could be until now.
  bool hide(SlotId slot);
  /// A guest's bytes are doubted: it is found no more, nor again. Whether it could be until now.
  bool shun(SlotId slot);
  /// The slot's chunk is about to become this instance's own: lets the guest go. False if it is
  /// leased.
  [[nodiscard]] bool may_become_own(SlotId slot);
  /// Finds none of them any more. Whether any could be found.
  bool hide_all();
  /// Lets those go that are not leased here, nor asked for since the last call. Whether any.
  bool drop_idle();

  [[nodiscard]] std::size_t size() const { return guests_.size(); }
  [[nodiscard]] std::size_t num_leased() const { return num_leased_; }
  /// Those that the index leads to.
  [[nodiscard]] std::size_t num_in_index() const { return guests_.size() - num_hidden_; }
  /// Since construction.
  [[nodiscard]] std::uint64_t num_found_total() const { return num_found_total_; }

 private:
  struct Guest {
    std::uint32_t position = 0;  ///< In guests_, from 1; 0: the slot is no guest.
    std::uint32_t num_leases : 29 = 0;
    std::uint32_t left_behind : 1 = 0;
    std::uint32_t asked_for : 1 = 0;
    std::uint32_t hidden : 1 = 0;
  };
  [[nodiscard]] Guest& guest(SlotId slot) { return by_slot_[slot.value()]; }
  [[nodiscard]] const Guest& guest(SlotId slot) const { return by_slot_[slot.value()]; }
  /// One that is not leased here.
  void let_go(SlotId slot);

  SharedSlots slots_;
  BlockIndex& index_;
  std::vector<Guest, HugePageAllocator<Guest>> by_slot_;
  std::vector<SlotId> guests_;  ///< In no order.
  std::size_t num_leased_ = 0;
  std::size_t num_left_behind_ = 0;  ///< Of those that are leased.
  std::size_t num_hidden_ = 0;
  std::uint64_t num_found_total_ = 0;
};

}  // namespace kvferry::cpu_tier
