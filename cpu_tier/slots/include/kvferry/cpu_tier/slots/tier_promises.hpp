// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/ids.hpp"
#include "kvferry/cpu_tier/slots/block_key.hpp"
#include "kvferry/cpu_tier/slots/tier.hpp"

#include <cstdint>
#include <span>

namespace kvferry::cpu_tier {

/// Clients' hints about a tier's blocks. A view of the tier, which outlives it. As thread-safe as
/// the tier.
class TierPromises {
 public:
  explicit TierPromises(Tier& tier) : tier_(&tier) {}

  /// A client's hint that the blocks of this prompt, from its first one on, will be requested.
  /// Until end() of the same keys, they stay in the tier beyond their turn to leave, even those
  /// that are stored later. This is limited by max_promised_share and by the hits that such blocks
  /// have earned (PromiseLedger). A promise never makes a reservation fail. Several promises of one
  /// key are counted. Throws std::bad_alloc; then the first keys can be promised.
  void promise(SlabClassId of, std::span<const BlockKey> keys);
  void end(SlabClassId of, std::span<const BlockKey> keys);
  /// A client's hint that the blocks of this prompt will not be requested again. Blocks that no
  /// request awaits or leases, and no client promises, leave before all others, from the tail of
  /// the prompt, as many as the ledger has room for. Returns how many. Throws std::bad_alloc, as
  /// promise().
  std::uint32_t leave_early(SlabClassId of, std::span<const BlockKey> keys);

 private:
  Tier* tier_;
};

}  // namespace kvferry::cpu_tier
