// SPDX-License-Identifier: Apache-2.0
#include "check_sampler.hpp"

#include <algorithm>
#include <cmath>

namespace kvferry::transfer {
namespace {

/// How many samples an average covers, once there are so many: some seconds of a busy link.
constexpr std::uint32_t kMemory = 64;
/// Fewer samples than this do not give an average.
constexpr std::uint32_t kEnough = 8;

}  // namespace

bool CheckSampler::chooses(const Piece& load) {
  if (verify_ != Verification::kSampled) return verify_ == Verification::kAll;
  if (++num_unchecked_ < period()) return has_unknown(load);
  num_unchecked_ = 0;
  return true;
}

bool CheckSampler::has_unknown(const Piece& load) const {
  return std::any_of(load.blocks.begin(), load.blocks.end(), [&](const BlockSlot& block) {
    const std::uint64_t tag = load.of->slots.tag(block.slot).load(std::memory_order_acquire);
    return tag != gpu::kNoTag && known_.find(load, block).tag != tag;
  });
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
