// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/ids.hpp"
#include "kvferry/cpu_tier/slots/block_key.hpp"
#include "kvferry/cpu_tier/slots/tier.hpp"

#include <cstdint>
#include <span>

namespace kvferry::cpu_tier {

/// What clients say of a tier's blocks. A view of the tier, which outlives it; thread-safe as that
/// is.
class TierPromises {
 public:
  explicit TierPromises(Tier& tier) : tier_(&tier) {}

  /// A client says that the blocks of this prompt, from its first one on, will be asked for: until
  /// end() of the same keys they leave the tier later than their turn, also those that are stored
  /// only then. Within max_promised_share, and no more of them than have paid for themselves
  /// (PromiseLedger). A promise makes no reservation fail. Promises of one key are counted. Throws
  /// std::bad_alloc; the first keys may be promised then.
  void promise(SlabClassId of, std::span<const BlockKey> keys);
  void end(SlabClassId of, std::span<const BlockKey> keys);
  /// A client says that the blocks of this prompt will not be asked for again: those that no
  /// request awaits or leases, and no client promises, leave before all others, its tail first, as
  /// many as the ledger has room for. Returns how many. Throws std::bad_alloc, as promise().
  std::uint32_t leave_early(SlabClassId of, std::span<const BlockKey> keys);

 private:
  Tier* tier_;
};

}  // namespace kvferry::cpu_tier
