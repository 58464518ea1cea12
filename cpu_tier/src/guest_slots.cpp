// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/guest_slots.hpp"

#include "kvferry/base/check.hpp"

#include <iterator>
#include <string>
#include <utility>

namespace kvferry::cpu_tier {

GuestSlots::~GuestSlots() {
  KVFERRY_CHECK(num_leased_ == 0, std::to_string(num_leased_) + " guests are leased still");
  static_cast<void>(forget_all());
}

std::optional<SlotId> GuestSlots::find(const BlockKey& key) {
  if (finds_nothing()) return std::nullopt;
  if (const auto known = by_key_.find(key); known != by_key_.end()) {
    guests_.at(known->second).asked_for = true;
    return known->second;
  }
  const std::optional<SlotId> slot = slots_.lease(key);
  if (!slot) return std::nullopt;
  if (!guests_.emplace(*slot, Guest{key}).second) {
    // A forgotten guest's, leased once more: whatever it is said to hold, it stays out.
    slots_.end_lease(*slot);
    return std::nullopt;
  }
  by_key_.emplace(key, *slot);
  ++num_found_total_;
  return slot;
}

bool GuestSlots::readable(SlotId slot) const {
  const auto found = guests_.find(slot);
  return found != guests_.end() && !found->second.forgotten;
}

void GuestSlots::lease(SlotId slot) {
  if (guests_.at(slot).num_leases++ == 0) ++num_leased_;
}

void GuestSlots::end_lease(SlotId slot) {
  const auto found = guests_.find(slot);
  Guest& guest = found->second;
  KVFERRY_CHECK(guest.num_leases > 0, "guest " + std::to_string(slot.value()) + " is not leased");
  if (--guest.num_leases > 0) return;
  --num_leased_;
  guest.asked_for = true;
  if (!guest.forgotten) return;
  slots_.end_lease(slot);
  guests_.erase(found);
}

bool GuestSlots::forget(SlotId slot) {
  const auto found = guests_.find(slot);
  Guest& guest = found->second;
  if (guest.forgotten) return false;
  guest.forgotten = true;
  by_key_.erase(guest.key);
  slots_.shun(slot);
  if (guest.num_leases > 0) return true;
  slots_.end_lease(slot);
  guests_.erase(found);
  return true;
}

GuestSlots::Guests::iterator GuestSlots::let_go(Guests::iterator guest) {
  by_key_.erase(guest->second.key);
  slots_.end_lease(guest->first);
  return guests_.erase(guest);
}

bool GuestSlots::may_become_own(SlotId slot) {
  const auto found = guests_.find(slot);
  if (found == guests_.end()) return true;
  if (found->second.num_leases > 0) return false;
  let_go(found);
  return true;
}

bool GuestSlots::forget_all() {
  bool any = false;
  for (auto it = guests_.begin(); it != guests_.end();) {
    any = any || !it->second.forgotten;
    it->second.forgotten = true;
    it = it->second.num_leases > 0 ? std::next(it) : let_go(it);
  }
  by_key_.clear();
  return any;
}

bool GuestSlots::drop_idle() {
  const std::size_t num_before = guests_.size();
  for (auto it = guests_.begin(); it != guests_.end();) {
    const bool is_idle = it->second.num_leases == 0 && !std::exchange(it->second.asked_for, false);
    it = is_idle ? let_go(it) : std::next(it);
  }
  return guests_.size() != num_before;
}

}  // namespace kvferry::cpu_tier
