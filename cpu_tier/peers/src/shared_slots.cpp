// SPDX-License-Identifier: Apache-2.0
#include "shared_slots.hpp"

#include "kvferry/base/check.hpp"

#include <string>

namespace kvferry::cpu_tier {

void SharedSlots::abandon(SlotId slot) const {
  const bool abandoned = directory_->slot(place_of(slot)).abandon();
  KVFERRY_CHECK(abandoned, "slot " + std::to_string(slot.value()) +
                               " is given up, but not filling: " + std::to_string(word(slot).bits));
}

bool SharedSlots::refill_unused(SlotId slot) const {
  const SlotPlace place = place_of(slot);
  return !directory_->slot(place).take_touched() && directory_->refill(place);
}

std::optional<SlotId> SharedSlots::lease(const BlockKey& key) {
  const std::optional<SlotPlace> place = directory_->leases().lease(key);
  if (!place) return std::nullopt;
  if (directory_->records().shape_of(place->chunk) == shape_) {
    return SlotId(place->chunk.value() * shape_.num_slots + place->index);
  }
  // The chunk is divided differently, which another program wrote.
  directory_->leases().end_lease(*place);
  return std::nullopt;
}

}  // namespace kvferry::cpu_tier
