// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/slots/tier_withdrawals.hpp"

#include "slab_class.hpp"

namespace kvferry::cpu_tier {

std::vector<WithdrawnSlot> TierWithdrawals::withdraw(const Lease& lease,
                                                     std::span<const SlotId> slots) {
  MutexLock lock(tier_->mutex_);
  return withdraw_from(tier_->at(lease.slab_class()).slots, slots);
}

std::optional<WithdrawnSlot> TierWithdrawals::withdraw(const DamagedSlot& found) {
  MutexLock lock(tier_->mutex_);
  SlotClass& of = tier_->at(found.slab_class).slots;
  if (found.slot.value() >= of.table().end() || !of.table().readable(found.slot)) {
    return std::nullopt;
  }
  return withdraw_from(of, {&found.slot, 1}).front();
}

bool TierWithdrawals::has(const DamagedSlot& slot) const {
  MutexLock lock(tier_->mutex_);
  if (slot.slab_class.value() >= tier_->num_classes_) return false;
  const auto& of = tier_->at(slot.slab_class);
  return slot.slot.value() / of.slots_per_chunk < tier_->max_chunks_;
}

std::vector<WithdrawnSlot> TierWithdrawals::withdraw_from(SlotClass& of,
                                                          std::span<const SlotId> slots) {
  std::vector<WithdrawnSlot> withdrawn;
  withdrawn.reserve(slots.size());
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

void TierWithdrawals::forget_withdrawn(Tier& tier) {
  for (std::uint32_t i = 0; i < tier.num_classes_; ++i) tier.classes_[i]->slots.forget_withdrawn();
}

}  // namespace kvferry::cpu_tier
