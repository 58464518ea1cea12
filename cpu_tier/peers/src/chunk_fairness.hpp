// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace kvferry::cpu_tier {

/// What one instance of a shared tier announces; all zeros: there is no instance.
struct ChunkDemand {
  std::uint32_t weight = 0;
  std::uint32_t num_chunks = 0;
  /// Chunks that it would take if it could.
  std::uint32_t num_wanted = 0;
  /// How long its next victim has been unused.
  std::uint32_t coldest_seconds = 0;
};

/// The number of chunks that instance `self` should give up now, of all `num_chunks`. An instance
/// that has less than its part of the memory by weight, and wants more, gets it from instances that
/// have more than their part. Beyond that, memory that has been unused for twice as long as another
/// instance's blocks live goes to that instance, as a single tier for all would evict it. So no
/// part is kept for an instance that does not use it. At most a sixteenth of the chunks of `self`
/// at a time, but at least one, because announcements are of the past.
[[nodiscard]] std::uint32_t num_chunks_to_give(std::span<const ChunkDemand> instances,
                                               std::size_t self, std::uint32_t num_chunks);

}  // namespace kvferry::cpu_tier
