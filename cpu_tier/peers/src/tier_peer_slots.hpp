// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/cpu_tier/peers/guest_slots.hpp"
#include "kvferry/cpu_tier/slots/peers.hpp"

#include "shared_slots.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace kvferry::cpu_tier {

/// The slots of one class of a shared tier: own slots by their words, and guests.
class TierPeerSlots final : public PeerSlots {
 public:
  TierPeerSlots(const SharedSlots& slots, BlockIndex& index, std::uint32_t max_slots)
      : slots_(slots), guests_(slots_, index, max_slots) {}

  void begin_fill(std::span<const SlotId> slots, std::uint32_t num_free) override;
  void publish(std::span<const SlotId> slots, const BlockIndex& index) override;
  void abandon(std::span<const SlotId> slots) override;
  std::size_t refill_unused(std::span<SlotId> slots) override;
  std::size_t evict(std::span<SlotId> slots) override;
  std::size_t forget(std::span<SlotId> slots) override;
  std::size_t make_free(std::span<SlotId> slots) override;
  [[nodiscard]] bool any_read(SlotRange range) const override;
  void read_keys(SlotId first, std::span<std::optional<BlockKey>> keys) const override;

  void find(std::span<const BlockKey> keys, std::span<SlotId> slots) override;
  void find_prefix(std::span<const BlockKey> keys, std::span<SlotId> slots) override;
  void mark_held(std::span<const BlockKey> keys, std::span<SlotId> slots) const override;
  [[nodiscard]] std::size_t ask_for(std::span<const SlotId> slots) override {
    return guests_.ask_for(slots);
  }
  bool hide(std::span<SlotId> slots) override { return guests_.hide(slots); }
  void lease(std::span<const SlotId> slots) override { guests_.lease(slots); }
  bool end_leases(std::span<const SlotId> slots) override { return guests_.end_leases(slots); }
  void leave_behind(std::span<const SlotId> slots) override { guests_.leave_behind(slots); }
  bool shun(std::span<const SlotId> slots) override { return guests_.shun(slots); }
  void withdraw(std::span<const SlotId> slots) override;
  [[nodiscard]] std::vector<SlotId> take_withdrawn() override;
  bool hide_all() override { return guests_.hide_all(); }
  [[nodiscard]] bool let_go(SlotRange range) override { return guests_.let_go(range); }
  bool drop_idle() override { return guests_.drop_idle(); }
  [[nodiscard]] GuestCounts guests() const override { return guests_.counts(); }
  void check_invariants(const SlotTable& table) const override;

 private:
  /// Moves the slots for which `is_true` holds to the front.
  template <class IsTrue>
  static std::size_t front_of(std::span<SlotId> slots, IsTrue is_true) {
    return static_cast<std::size_t>(std::partition(slots.begin(), slots.end(), is_true) -
                                    slots.begin());
  }
  /// Prefetches what guests_.find() needs for the keys whose slot is BlockIndex::kNoSlot.
  void prefetch(std::span<const BlockKey> keys, std::span<const SlotId> slots) const;
  /// slots[i] if it is not absent; otherwise the slot of a guest with keys[i], if there is one.
  /// Call it with ascending `i`.
  [[nodiscard]] SlotId guest_if_absent(std::span<const BlockKey> keys,
                                       std::span<const SlotId> slots, std::size_t i);

  SharedSlots slots_;
  GuestSlots guests_;
};

}  // namespace kvferry::cpu_tier
