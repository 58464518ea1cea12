// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/policy/arc_ghosts.hpp"

#include "kvferry/cpu_tier/policy/eviction_table.hpp"

#include <algorithm>
#include <memory>

namespace kvferry::cpu_tier {
namespace {

constexpr std::size_t kProbation = static_cast<std::size_t>(Segment::kProbation);
constexpr std::size_t kProtected = static_cast<std::size_t>(Segment::kProtected);

}  // namespace

Segment ArcGhosts::take(std::uint64_t hash) {
  const std::uint32_t ghost = ghosts_.find(static_cast<std::uint32_t>(hash));
  if (ghost == HashedLists::kNone) return Segment::kProbation;
  const double num_probation = ghosts_.size(kProbation);
  const double num_protected = ghosts_.size(kProtected);
  if (ghosts_[ghost].list == kProbation) {
    target_ = std::min<double>(num_slots_, target_ + std::max(1.0, num_protected / num_probation));
  } else {
    target_ = std::max(0.0, target_ - std::max(1.0, num_probation / num_protected));
  }
  ghosts_.erase(ghost);
  return Segment::kProtected;
}

void ArcGhosts::evicted(std::uint64_t hash, Segment from, std::uint32_t num_probation) {
  const auto list = static_cast<std::size_t>(from);
  const auto id = static_cast<std::uint32_t>(hash);
  if (const std::uint32_t known = ghosts_.find(id); known != HashedLists::kNone) {
    ghosts_.make_hottest(known, list);
    return;
  }
  // |T1| + |B1| <= c and |B1| + |B2| <= c. For the first condition only B1 can shrink.
  if (list == kProbation) {
    while (ghosts_.size(kProbation) > 0 && num_probation + ghosts_.size(kProbation) >= num_slots_) {
      ghosts_.erase(ghosts_.coldest(kProbation));
    }
    if (num_probation >= num_slots_) return;
  }
  if (ghosts_.size() >= num_slots_) {
    ghosts_.erase(ghosts_.coldest(ghosts_.size(kProtected) > 0 ? kProtected : kProbation));
  }
  ghosts_.insert(id, list);
}

std::unique_ptr<EvictionMemory> make_arc_ghosts(std::uint32_t max_slots) {
  return std::make_unique<ArcGhosts>(max_slots);
}

}  // namespace kvferry::cpu_tier
