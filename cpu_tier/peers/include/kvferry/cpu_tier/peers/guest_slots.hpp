// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/ids.hpp"
#include "kvferry/cpu_tier/memory/huge_page_allocator.hpp"
#include "kvferry/cpu_tier/slots/block_index.hpp"
#include "kvferry/cpu_tier/slots/block_key.hpp"
#include "kvferry/cpu_tier/slots/peers.hpp"
#include "kvferry/cpu_tier/slots/slot_range.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace kvferry::cpu_tier {

/// The leases that this instance takes on slots of others, or without an owner.
class GuestLeases {
 public:
  virtual ~GuestLeases() = default;

  /// Leases a slot that holds the key, and returns it; nothing if there is none.
  [[nodiscard]] virtual std::optional<SlotId> lease(const BlockKey& key) = 0;
  virtual void end_lease(SlotId slot) = 0;
  /// A rank may still read the slot after the tier is gone.
  virtual void leave_lease(SlotId slot) = 0;
  /// The slot's bytes are in doubt: this instance no longer leases its content.
  virtual void shun(SlotId slot) = 0;
};

/// Slots of other instances of a shared tier, or without an owner, that this instance has found and
/// may read. A guest is leased from the moment it is found, so that the result of a lookup stays
/// true. It is released when its last lease here ends, unless a lookup asked for it since that
/// lease began. A guest without a lease here is released when no lookup has asked for it lately.
///
/// While a guest can be found, the tier's own index leads to it, as to own slots. One thread at a
/// time.
class GuestSlots {
 public:
  /// Slots are below `max_slots`. `index` is the tier's. It and `leases` outlive this object.
  GuestSlots(GuestLeases& leases, BlockIndex& index, std::uint32_t max_slots);
  /// Releases all guests but those left behind. No other guest is leased here by then.
  ~GuestSlots();
  GuestSlots(const GuestSlots&) = delete;
  GuestSlots& operator=(const GuestSlots&) = delete;

  /// The slot of a key that was not in the index a moment ago. It is the slot of a guest that is
  /// found now and enters the index, or one that entered the index in the meantime, for example if
  /// a key is asked for twice.
  [[nodiscard]] std::optional<SlotId> find(const BlockKey& key);

  /// Whether the slot is a guest, whether or not it can be found.
  [[nodiscard]] bool knows(SlotId slot) const { return guest(slot).position != 0; }

  // As the functions of PeerSlots with these names.
  std::size_t ask_for(std::span<const SlotId> slots);
  bool hide(std::span<SlotId> slots);
  void lease(std::span<const SlotId> slots);
  bool end_leases(std::span<const SlotId> slots);
  /// The guests stay leased for good, also after this object.
  void leave_behind(std::span<const SlotId> slots);
  bool shun(std::span<const SlotId> slots);
  [[nodiscard]] bool let_go(SlotRange range);
  /// Hides all guests from lookups. Returns whether any could be found.
  bool hide_all();
  /// Releases guests that are not leased here and were not asked for since the last call. Returns
  /// whether there were any.
  bool drop_idle();

  [[nodiscard]] GuestCounts counts() const {
    return {static_cast<std::uint32_t>(guests_.size()), static_cast<std::uint32_t>(num_leased_),
            static_cast<std::uint32_t>(num_in_index()), num_found_total_};
  }

 private:
  struct Guest {
    std::uint32_t position = 0;  ///< In guests_, from 1; 0: the slot is not a guest.
    std::uint32_t num_leases : 29 = 0;
    std::uint32_t left_behind : 1 = 0;
    std::uint32_t asked_for : 1 = 0;
    std::uint32_t hidden : 1 = 0;
  };
  [[nodiscard]] Guest& guest(SlotId slot) { return by_slot_[slot.value()]; }
  [[nodiscard]] const Guest& guest(SlotId slot) const { return by_slot_[slot.value()]; }
  /// The number of guests that the index leads to.
  [[nodiscard]] std::size_t num_in_index() const { return guests_.size() - num_hidden_; }
  /// Removes one lease of this instance on a guest. Returns whether the guest was released.
  bool end_lease(SlotId slot);
  /// Hides a guest from lookups. Returns whether it could be found until now.
  bool hide(SlotId slot);
  /// Releases a guest that is not leased here.
  void release(SlotId slot);

  GuestLeases& leases_;
  BlockIndex& index_;
  std::vector<Guest, HugePageAllocator<Guest>> by_slot_;
  std::vector<SlotId> guests_;  ///< In any order.
  std::size_t num_leased_ = 0;
  std::size_t num_left_behind_ = 0;  ///< How many of the leased ones were left behind.
  std::size_t num_hidden_ = 0;
  std::uint64_t num_found_total_ = 0;
};

}  // namespace kvferry::cpu_tier
