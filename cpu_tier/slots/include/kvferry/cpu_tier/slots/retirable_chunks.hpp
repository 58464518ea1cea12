// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/cpu_tier/memory/slab_geometry.hpp"
#include "kvferry/cpu_tier/slots/tier.hpp"

#include <cstdint>
#include <optional>

namespace kvferry::cpu_tier {

/// Chunks of a tier that go out of use for the machine's sake, and come back. A view of the tier,
/// which outlives it; thread-safe as that is.
class RetirableChunks {
 public:
  explicit RetirableChunks(Tier& tier) : tier_(&tier) {}

  /// Takes a run of chunks out of use, [k * `run`, (k + 1) * `run`) or what the tier has of that,
  /// whose slots are all free or evictable: of those that hold the blocks that were used longest
  /// ago the one that was unused for longest, in the mean over its slots. What it holds is evicted.
  /// Nothing if every run has a slot that is named (reserved, leased, in a device's hands,
  /// quarantined) or is not usable, if a look that is bounded found none, or if peers use the
  /// memory too.
  [[nodiscard]] std::optional<ChunkRange> retire_coldest(std::uint32_t run) const;
  /// Makes chunks usable, and empty, that were retired, or that are beyond those of
  /// Tier::grow_to(), which is not called any more then.
  void restore(ChunkRange chunks) const;

 private:
  Tier* tier_;
};

}  // namespace kvferry::cpu_tier
