// SPDX-License-Identifier: Apache-2.0
#include "class_tiers.hpp"

namespace kvferry::connector {

using cpu_tier::CpuTier;
using cpu_tier::SlabSnapshot;
using cpu_tier::SlabTier;
using cpu_tier::TierSnapshot;

ClassTiers::ClassTiers(const SchedulerOptions& options) : directory_(options.shared_tier) {
  for (const SlabClass& of : options.classes) slots_per_chunk_.push_back(of.slots_per_chunk);
  if (options.classes.size() == 1 && directory_ == nullptr) {
    alone_ = std::make_unique<CpuTier>(options.max_chunks * slots_per_chunk_[0], options.tier);
    tiers_.push_back(alone_.get());
    return;
  }
  slabs_ = std::make_unique<SlabTier>(options.max_chunks, options.tier, directory_);
  for (const std::uint32_t count : slots_per_chunk_) {
    tiers_.push_back(&slabs_->tier(slabs_->add_class(count)));
  }
  if (directory_ != nullptr) {
    keeper_ = std::make_unique<cpu_tier::TierKeeper>(*slabs_, *directory_);
  }
}

void ClassTiers::grow_to(std::uint32_t num_chunks) {
  if (slabs_) return slabs_->grow_to(num_chunks);
  alone_->grow_to(num_chunks * slots_per_chunk_[0]);
}

void ClassTiers::offer(SlabClassId slab_class, std::span<const cpu_tier::BlockKey> keys,
                       std::span<cpu_tier::OfferAnswer> answers) {
  if (slabs_) return slabs_->offer(slab_class, keys, answers);
  alone_->offer(keys, answers);
}

Result<cpu_tier::Reservation, cpu_tier::NotReserved> ClassTiers::reserve(
    SlabClassId slab_class, std::span<const cpu_tier::BlockKey> keys) {
  return slabs_ ? slabs_->reserve(slab_class, keys) : alone_->reserve(keys);
}

void ClassTiers::forget_all() {
  for (CpuTier* tier : tiers_) tier->forget_all();
  if (directory_ != nullptr) directory_->leave_name_space();
}

std::vector<cpu_tier::KeyEvent> ClassTiers::take_key_events() {
  std::vector<cpu_tier::KeyEvent> events = tiers_.front()->take_key_events();
  for (std::size_t i = 1; i < tiers_.size(); ++i) {
    const std::vector<cpu_tier::KeyEvent> more = tiers_[i]->take_key_events();
    events.insert(events.end(), more.begin(), more.end());
  }
  return events;
}

std::uint64_t ClassTiers::eviction_epoch() const {
  std::uint64_t sum = 0;
  for (const CpuTier* tier : tiers_) sum += tier->eviction_epoch();
  return sum;
}

TierSnapshot ClassTiers::snapshot() const {
  if (alone_) return alone_->snapshot();
  const SlabSnapshot slabs = slabs_->snapshot();
  TierSnapshot sum;
  for (const cpu_tier::SlabClassSnapshot& of : slabs.classes) sum += of.tier;
  const std::uint32_t num_unused = slabs.num_free_chunks * slots_per_chunk_[0];
  sum.num_free += num_unused;
  sum.num_slots += num_unused;
  return sum;
}

SlabSnapshot ClassTiers::slab_snapshot() const {
  if (slabs_) return slabs_->snapshot();
  const TierSnapshot now = alone_->snapshot();
  const std::uint32_t num_chunks = now.num_slots / slots_per_chunk_[0];
  return {num_chunks, 0, {{slots_per_chunk_[0], num_chunks, 0, now}}};
}

}  // namespace kvferry::connector
