// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace kvferry::cpu_tier {

/// What one instance of a shared tier says of itself; all zeros: there is none.
struct ChunkDemand {
  std::uint32_t weight = 0;
  std::uint32_t num_chunks = 0;
  /// That it would take if it could.
  std::uint32_t num_wanted = 0;
  /// For how long what it would evict next has not been used.
  std::uint32_t coldest_seconds = 0;
};

/// Chunks that instance `self` should give up now, of `num_chunks` that there are. An instance
/// that has less than its part of the memory by weight, and wants more, gets it from those that
/// have more than theirs. Beyond that, what has lain unused for twice as long as another instance's
/// blocks live goes to that instance, as one tier for all would evict it: no part is kept for an
/// instance that does not use it. At most a sixteenth of what `self` has at a time, and one at
/// least: what others say is of the past.
[[nodiscard]] std::uint32_t num_chunks_to_give(std::span<const ChunkDemand> instances,
                                               std::size_t self, std::uint32_t num_chunks);

}  // namespace kvferry::cpu_tier
