// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/peers/guest_slots.hpp"

#include "kvferry/base/check.hpp"

#include <string>

namespace kvferry::cpu_tier {

GuestSlots::GuestSlots(GuestLeases& leases, BlockIndex& index, std::uint32_t max_slots)
    : leases_(leases), index_(index), by_slot_(max_slots) {}

GuestSlots::~GuestSlots() {
  KVFERRY_CHECK(num_leased_ == num_left_behind_,
                std::to_string(num_leased_ - num_left_behind_) + " guests are still leased");
  hide_all();
  for (const SlotId slot : guests_) leases_.leave_lease(slot);
}

std::optional<SlotId> GuestSlots::find(const BlockKey& key) {
  SlotId known = BlockIndex::kNoSlot;
  index_.find({&key, 1}, {&known, 1});
  if (known != BlockIndex::kNoSlot) return known;
  // This allocates before the lease, because nothing may fail between the lease and its record.
  if (guests_.size() == guests_.capacity()) guests_.reserve(2 * guests_.size() + 1);
  const std::optional<SlotId> slot = leases_.lease(key);
  if (!slot) return std::nullopt;
  guests_.push_back(*slot);
  guest(*slot) = {.position = static_cast<std::uint32_t>(guests_.size()), .asked_for = 1};
  index_.insert({&key, 1}, {&*slot, 1});
  ++num_found_total_;
  return slot;
}

std::size_t GuestSlots::ask_for(std::span<const SlotId> slots) {
  std::size_t count = 0;
  for (; count < slots.size(); ++count) {
    Guest& asked = guest(slots[count]);
    if (asked.position == 0 || asked.hidden == 1) break;
    asked.asked_for = 1;
  }
  return count;
}

void GuestSlots::lease(std::span<const SlotId> slots) {
  for (const SlotId slot : slots) {
    Guest& leased = guest(slot);
    if (leased.num_leases++ == 0) ++num_leased_;
    leased.asked_for = 0;
  }
}

bool GuestSlots::end_leases(std::span<const SlotId> slots) {
  bool any = false;
  for (std::size_t i = slots.size(); i-- > 0;) any = end_lease(slots[i]) || any;
  return any;
}

bool GuestSlots::end_lease(SlotId slot) {
  Guest& ended = guest(slot);
  KVFERRY_CHECK(ended.num_leases > 0, "guest " + std::to_string(slot.value()) + " is not leased");
  if (--ended.num_leases > 0) return false;
  --num_leased_;
  if (ended.asked_for == 1 && ended.hidden == 0) return false;
  release(slot);
  return true;
}

void GuestSlots::leave_behind(std::span<const SlotId> slots) {
  for (const SlotId slot : slots) {
    Guest& left = guest(slot);
    KVFERRY_CHECK(left.num_leases > 0, "guest " + std::to_string(slot.value()) + " is not leased");
    num_left_behind_ += left.left_behind == 0 ? 1 : 0;
    left.left_behind = 1;
  }
}

bool GuestSlots::hide(std::span<SlotId> slots) {
  if (guests_.empty()) return false;
  bool any = false;
  for (SlotId& slot : slots) {
    if (slot == BlockIndex::kNoSlot || !knows(slot)) continue;
    hide(slot);
    slot = BlockIndex::kNoSlot;
    any = true;
  }
  return any;
}

bool GuestSlots::hide(SlotId slot) {
  Guest& hidden = guest(slot);
  if (hidden.hidden == 1) return false;
  hidden.hidden = 1;
  ++num_hidden_;
  index_.erase({&slot, 1});
  if (hidden.num_leases == 0) release(slot);
  return true;
}

bool GuestSlots::shun(std::span<const SlotId> slots) {
  bool any = false;
  for (const SlotId slot : slots) {
    if (!knows(slot)) continue;
    leases_.shun(slot);
    any = hide(slot) || any;
  }
  return any;
}

void GuestSlots::release(SlotId slot) {
  const Guest gone = guest(slot);
  if (gone.hidden == 1) {
    --num_hidden_;
  } else {
    index_.erase({&slot, 1});
  }
  const SlotId last = guests_.back();
  guests_[gone.position - 1] = last;
  guest(last).position = gone.position;
  guests_.pop_back();
  guest(slot) = {};
  leases_.end_lease(slot);
}

bool GuestSlots::let_go(SlotRange range) {
  for (std::uint32_t i = range.first; i < range.end; ++i) {
    if (!knows(SlotId(i))) continue;
    if (guest(SlotId(i)).num_leases > 0) return false;
    release(SlotId(i));
  }
  return true;
}

bool GuestSlots::hide_all() {
  const std::size_t num_found = num_in_index();
  // From the last to the first: if one is removed, the last one takes its place.
  for (std::size_t i = guests_.size(); i-- > 0;) hide(guests_[i]);
  return num_found > 0;
}

bool GuestSlots::drop_idle() {
  const std::size_t num_before = guests_.size();
  for (std::size_t i = num_before; i-- > 0;) {
    Guest& idle = guest(guests_[i]);
    if (idle.num_leases == 0 && idle.asked_for == 0) {
      release(guests_[i]);
    } else {
      idle.asked_for = 0;
    }
  }
  return guests_.size() != num_before;
}

}  // namespace kvferry::cpu_tier
