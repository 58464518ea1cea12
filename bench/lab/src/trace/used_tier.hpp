// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/cpu_tier/slots/tier.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace kvferry::bench::trace {

/// The key of a block of a trace. Its bits are as uniform as those of a content hash.
[[nodiscard]] cpu_tier::BlockKey key_of(std::uint64_t block);

/// The real tier, used like a connector uses it. All blocks have one size. Nothing is copied, so a
/// load or a store ends as soon as it begins. Used by one thread.
class UsedTier {
 public:
  static constexpr SlabClassId kOnly{0};

  UsedTier(std::uint32_t num_blocks, const cpu_tier::TierOptions& options);

  /// The longest prefix of `keys` that it holds.
  [[nodiscard]] cpu_tier::PrefixHit lookup(std::span<const cpu_tier::BlockKey> keys) const {
    return tier_.lookup_prefix(kOnly, keys);
  }
  /// Leases and releases the first `count` blocks of a hit. Nothing was stored since the lookup.
  void load(const cpu_tier::PrefixHit& hit, std::size_t count);
  /// Offers all blocks of a request, and stores those that the tier wants. Returns how many it held
  /// already.
  std::uint64_t store(std::span<const cpu_tier::BlockKey> keys);

  [[nodiscard]] cpu_tier::Tier& tier() { return tier_; }
  [[nodiscard]] const cpu_tier::Tier& tier() const { return tier_; }

 private:
  cpu_tier::Tier tier_;
  std::vector<cpu_tier::BlockKey> wanted_;
  std::vector<cpu_tier::OfferAnswer> answers_;
};

}  // namespace kvferry::bench::trace
