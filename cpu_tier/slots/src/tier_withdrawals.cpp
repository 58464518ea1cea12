// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/slots/tier_withdrawals.hpp"

#include "slab_class.hpp"

namespace kvferry::cpu_tier {

std::vector<WithdrawnSlot> TierWithdrawals::withdraw(const Lease& lease,
                                                     std::span<const SlotId> slots) {
  std::vector<WithdrawnSlot> withdrawn;
  withdrawn.reserve(slots.size());
  MutexLock lock(tier_->mutex_);
  SlotClass& of = tier_->at(lease.slab_class()).slots;
  for (const SlotId slot : slots) {
    WithdrawnSlot one{slot, of.key(slot), of.table().state(slot) != SlotState::kAbsent};
    SlotId found = BlockIndex::kNoSlot;
    of.index_.find({&*one.key, 1}, {&found, 1});
    if (found != slot) one.key.reset();
    withdrawn.push_back(one);
  }
  of.withdraw(slots);
  return withdrawn;
}

}  // namespace kvferry::cpu_tier
