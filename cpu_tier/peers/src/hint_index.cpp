// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/peers/hint_index.hpp"

#include "kvferry/base/check.hpp"

#include <bit>
#include <string>

namespace kvferry::cpu_tier {

HintIndex::HintIndex(std::span<std::atomic<std::uint64_t>> hints)
    : hints_(hints), bucket_mask_(hints.size() / kBucketHints - 1) {
  KVFERRY_CHECK(std::has_single_bit(hints.size()) && hints.size() >= kBucketHints &&
                    reinterpret_cast<std::uintptr_t>(hints.data()) % 64 == 0,
                "an index of " + std::to_string(hints.size()) + " hints");
}

HintIndex::Candidates HintIndex::find(std::uint64_t hash) const {
  Candidates found;
  for (const std::atomic<std::uint64_t>& each : bucket_of(hash)) {
    const std::uint64_t hint = each.load(std::memory_order_acquire);
    if (hint != 0 && ((hint ^ hash) & kTagMask) == 0) {
      found.slots[found.count++] = static_cast<std::uint32_t>(hint) - 1U;
    }
  }
  return found;
}

void HintIndex::remove(std::uint64_t hash, std::uint32_t slot) {
  const std::uint64_t hint = hint_of(hash, slot);
  for (std::atomic<std::uint64_t>& each : bucket_of(hash)) {
    std::uint64_t seen = each.load(std::memory_order_relaxed);
    if (seen == hint) each.compare_exchange_strong(seen, 0, std::memory_order_relaxed);
  }
}

}  // namespace kvferry::cpu_tier
