// SPDX-License-Identifier: Apache-2.0
#include "check_sampler.hpp"

#include "block_tag.hpp"

#include <algorithm>
#include <cmath>

namespace kvferry::transfer {
namespace {

/// Of a sample in the average, once there are as many: some seconds of a busy link.
constexpr std::uint32_t kMemory = 64;
/// Fewer samples say nothing.
constexpr std::uint32_t kEnough = 8;

}  // namespace

bool CheckSampler::chooses(const Piece& load) {
  if (verify_ != Verification::kSampled) return verify_ == Verification::kAll;
  if (++num_unchecked_ < period()) return has_unknown(load);
  num_unchecked_ = 0;
  return true;
}

bool CheckSampler::has_unknown(const Piece& load) const {
  const std::size_t of_class = load.slab_class.value();
  return std::any_of(load.blocks.begin(), load.blocks.end(), [&](const BlockSlot& block) {
    const std::uint64_t tag = load.of->slots.tag(block.slot).load(std::memory_order_acquire);
    const std::size_t slot = block.slot.value();
    const bool is_known =
        of_class < known_.size() && slot < known_[of_class].size() && known_[of_class][slot] == tag;
    return tag != kNoTag && !is_known;
  });
}

void CheckSampler::know(SlabClassId slab_class, SlotId slot, std::uint64_t tag) {
  if (verify_ != Verification::kSampled) return;
  if (slab_class.value() >= known_.size()) known_.resize(slab_class.value() + 1);
  std::vector<std::uint64_t>& of_class = known_[slab_class.value()];
  if (slot.value() >= of_class.size()) of_class.resize(slot.value() + 1, kNoTag);
  of_class[slot.value()] = tag;
}

void CheckSampler::learn(bool is_checked, std::uint64_t bytes, std::chrono::nanoseconds time) {
  if (bytes == 0 || time.count() <= 0) return;
  Pace& pace = is_checked ? checked_ : unchecked_;
  pace.num_samples = std::min(pace.num_samples + 1, kMemory);
  const double ns_per_byte = static_cast<double>(time.count()) / static_cast<double>(bytes);
  pace.ns_per_byte += (ns_per_byte - pace.ns_per_byte) / pace.num_samples;
}

std::uint32_t CheckSampler::period() const {
  if (checked_.num_samples < kEnough || unchecked_.num_samples < kEnough) return kMinPeriod;
  const double extra = checked_.ns_per_byte / unchecked_.ns_per_byte - 1;
  return static_cast<std::uint32_t>(
      std::clamp(std::ceil(extra / kCostShare), double{kMinPeriod}, double{kMaxPeriod}));
}

}  // namespace kvferry::transfer
