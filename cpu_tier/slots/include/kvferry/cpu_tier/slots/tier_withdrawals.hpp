// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/ids.hpp"
#include "kvferry/cpu_tier/slots/block_key.hpp"
#include "kvferry/cpu_tier/slots/slot_set.hpp"
#include "kvferry/cpu_tier/slots/tier.hpp"

#include <optional>
#include <span>
#include <vector>

namespace kvferry::cpu_tier {

/// A slot whose bytes are not what was stored.
struct WithdrawnSlot {
  SlotId slot;
  std::optional<BlockKey> key;  ///< Unset if it was forgotten before.
  bool is_own = true;           ///< Otherwise it is a peer's.
  bool operator==(const WithdrawnSlot&) const = default;
};

/// What follows when a load finds slots damaged. A view of the tier, which outlives it. As
/// thread-safe as the tier.
class TierWithdrawals {
 public:
  explicit TierWithdrawals(Tier& tier) : tier_(&tier) {}

  /// Withdraws these slots of the lease, because their bytes are not what was stored: no tier that
  /// shares the memory finds them any more, and they are never used again. When their last lease
  /// ends, they are *set aside*: they count as quarantined until the memory is gone, and their
  /// chunk stays with its class. Throws std::bad_alloc.
  [[nodiscard]] std::vector<WithdrawnSlot> withdraw(const Lease& lease,
                                                    std::span<const SlotId> slots);

 private:
  Tier* tier_;
};

}  // namespace kvferry::cpu_tier
