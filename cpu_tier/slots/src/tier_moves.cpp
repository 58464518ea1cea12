// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/slots/tier_moves.hpp"

#include "slab_class.hpp"

#include <utility>

namespace kvferry::cpu_tier {

void TierMoves::take(SlabClassId of, std::vector<KeyMove>& moves) {
  moves.clear();
  MutexLock lock(tier_->mutex_);
  std::swap(tier_->at(of).slots.key_moves_, moves);
}

}  // namespace kvferry::cpu_tier
