// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/ids.hpp"
#include "kvferry/base/mutex.hpp"
#include "kvferry/cpu_tier/slots/block_key.hpp"
#include "kvferry/cpu_tier/slots/slot_set.hpp"
#include "kvferry/cpu_tier/slots/tier.hpp"

#include <optional>
#include <span>
#include <vector>

namespace kvferry::cpu_tier {

class SlotClass;

/// A slot whose bytes are not what was stored.
struct WithdrawnSlot {
  SlotId slot;
  std::optional<BlockKey> key;  ///< Unset if it was forgotten before.
  bool is_own = true;           ///< Otherwise it is a peer's.
  bool operator==(const WithdrawnSlot&) const = default;
};

/// Withdraws slots that were found damaged. A view of the tier, which outlives it. As thread-safe
/// as the tier.
class TierWithdrawals {
 public:
  explicit TierWithdrawals(Tier& tier) : tier_(&tier) {}

  /// Withdraws these slots of the lease, because their bytes are not what was stored: no tier that
  /// shares the memory finds them any more, and they are never used again. When their last lease
  /// ends, they are *set aside*: they count as quarantined until the memory is gone, and their
  /// chunk stays with its class. Throws std::bad_alloc.
  [[nodiscard]] std::vector<WithdrawnSlot> withdraw(const Lease& lease,
                                                    std::span<const SlotId> slots);
  /// The same for a slot without a lease of the caller. Returns nothing if the slot is no longer
  /// readable: then its damaged contents are forgotten, or about to be overwritten.
  [[nodiscard]] std::optional<WithdrawnSlot> withdraw(const DamagedSlot& found);
  /// Whether the tier has this slot.
  [[nodiscard]] bool has(const DamagedSlot& slot) const;

 private:
  friend class Tier;
  /// Called under the tier's lock.
  [[nodiscard]] static std::vector<WithdrawnSlot> withdraw_from(SlotClass& of,
                                                                std::span<const SlotId> slots);
  /// Forgets own slots that peers have withdrawn.
  static void forget_withdrawn(Tier& tier) KVFERRY_REQUIRES(tier.mutex_);

  Tier* tier_;
};

}  // namespace kvferry::cpu_tier
