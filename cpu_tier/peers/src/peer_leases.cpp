// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/peers/peer_leases.hpp"

#include "kvferry/base/check.hpp"
#include "kvferry/base/test_hooks.hpp"

#include <algorithm>
#include <string>

namespace kvferry::cpu_tier {

bool PeerLeases::has(const BlockKey& key) const {
  if (is_alone()) return false;
  const HintIndex::Candidates candidates = records_.hints().find(records_.hash_of(key));
  return std::any_of(candidates.begin(), candidates.end(), [&](std::uint32_t number) {
    return records_.holds(records_.place_of(number), key) && !is_shunned(records_.place_of(number));
  });
}

std::optional<SlotPlace> PeerLeases::lease(const BlockKey& key) {
  if (is_alone()) return std::nullopt;
  for (const std::uint32_t number : records_.hints().find(records_.hash_of(key))) {
    const SlotPlace place = records_.place_of(number);
    if (!records_.holds(place, key) || records_.owns(place.chunk) || is_shunned(place)) continue;
    if (!records_.slot(place).lease(records_.self())) continue;
    KVFERRY_PAUSE_POINT("tier_directory.leased_unchecked");
    // Until the lease, the slot may have become another key's.
    if (records_.holds(place, key)) {
      num_leases_.fetch_add(1, std::memory_order_relaxed);
      return place;
    }
    records_.slot(place).end_lease(records_.self());
  }
  return std::nullopt;
}

void PeerLeases::end_lease(SlotPlace place) {
  const bool was_leased = records_.slot(place).end_lease(records_.self());
  KVFERRY_CHECK(was_leased, "a slot is not leased: " + std::to_string(records_.number_of(place)));
  num_leases_.fetch_sub(1, std::memory_order_relaxed);
}

void PeerLeases::leave_lease(SlotPlace place) {
  KVFERRY_CHECK(records_.slot(place).load().is_leased_by(records_.self()),
                "a slot is not leased: " + std::to_string(records_.number_of(place)));
  num_leases_.fetch_sub(1, std::memory_order_relaxed);
}

void PeerLeases::shun(SlotPlace place) {
  const MutexLock lock(mutex_);
  shunned_.insert_or_assign(records_.number_of(place), records_.slot(place).load().generation());
  any_shunned_.store(true, std::memory_order_release);
}

bool PeerLeases::is_shunned(SlotPlace place) const {
  if (!any_shunned_.load(std::memory_order_acquire)) return false;
  const MutexLock lock(mutex_);
  const auto shunned = shunned_.find(records_.number_of(place));
  if (shunned == shunned_.end()) return false;
  if (shunned->second == records_.slot(place).load().generation()) return true;
  shunned_.erase(shunned);
  any_shunned_.store(!shunned_.empty(), std::memory_order_release);
  return false;
}

}  // namespace kvferry::cpu_tier
