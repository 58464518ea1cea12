// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/cpu_tier/memory/slab_geometry.hpp"
#include "kvferry/cpu_tier/slots/tier.hpp"

#include <cstdint>
#include <optional>

namespace kvferry::cpu_tier {

/// Takes chunks of a tier out of use, so that the machine gets their memory, and brings them back.
/// A view of the tier, which outlives it. As thread-safe as the tier.
class RetirableChunks {
 public:
  explicit RetirableChunks(Tier& tier) : tier_(&tier) {}

  /// Takes one run of chunks out of use: chunks [k * `run`, (k + 1) * `run`), or the part of them
  /// that the tier has. All slots of the run must be free or evictable. Among the runs with the
  /// blocks that were used longest ago, it chooses the one of which no slot has been used for
  /// longest. Its blocks are evicted. Returns nothing if every run is unusable or
  /// has a named slot (reserved, leased, in use by a device, quarantined), if a bounded search
  /// found none, or if peers use the memory too.
  [[nodiscard]] std::optional<ChunkRange> retire_coldest(std::uint32_t run) const;
  /// Makes chunks usable and empty that were retired, or that lie after those of Tier::grow_to().
  /// After this call Tier::grow_to() must not be called any more.
  void restore(ChunkRange chunks) const;

 private:
  Tier* tier_;
};

}  // namespace kvferry::cpu_tier
