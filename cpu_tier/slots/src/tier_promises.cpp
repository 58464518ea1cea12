// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/slots/tier_promises.hpp"

#include "slab_class.hpp"
#include "slot_promises.hpp"

namespace kvferry::cpu_tier {

void TierPromises::promise(SlabClassId of, std::span<const BlockKey> keys) {
  MutexLock lock(tier_->mutex_);
  SlotPromises(tier_->at(of).slots).promise(keys);
}

void TierPromises::end(SlabClassId of, std::span<const BlockKey> keys) {
  MutexLock lock(tier_->mutex_);
  SlotPromises(tier_->at(of).slots).end(keys);
}

std::uint32_t TierPromises::leave_early(SlabClassId of, std::span<const BlockKey> keys) {
  MutexLock lock(tier_->mutex_);
  return SlotPromises(tier_->at(of).slots).leave_early(keys);
}

}  // namespace kvferry::cpu_tier
