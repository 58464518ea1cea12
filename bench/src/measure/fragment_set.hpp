// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/ids.hpp"
#include "kvferry/gpu/device.hpp"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kvferry::bench {

/// How fragments are placed in the device's pool. In host memory they are always packed, as in a
/// slot.
struct Placement {
  /// Number of consecutive fragments before the next jump: 1 is shuffled, 0 contiguous.
  std::uint32_t run_length = 1;
};
/// Reads "contiguous", "shuffled", or "runs:8". Throws ConfigError.
[[nodiscard]] Placement placement_from(std::string_view text);
[[nodiscard]] std::string to_string(const Placement& placement);

/// Fragments of one size, in sets of `count` that are copied one after the other.
struct FragmentSets {
  std::uint64_t fragment_bytes = 0;
  std::uint32_t count = 0;
  std::uint32_t num_sets = 1;
  /// The place of each fragment in the pool, counted in fragments, beginning with the first set.
  /// All are different.
  std::vector<BlockId> places;
  /// Fragments for which the pool has room: more than `places`, so that runs do not touch.
  std::uint32_t pool_fragments = 0;

  [[nodiscard]] std::uint64_t set_bytes() const { return fragment_bytes * count; }
  [[nodiscard]] std::uint64_t total_bytes() const { return set_bytes() * num_sets; }
  [[nodiscard]] std::uint64_t pool_bytes() const { return fragment_bytes * pool_fragments; }
};

/// Draws places from `seed`. All figures are at least 1. Throws ConfigError if there are more than
/// 2^31 fragments.
[[nodiscard]] FragmentSets make_fragment_sets(std::uint64_t fragment_bytes, std::uint32_t count,
                                              std::uint32_t num_sets, const Placement& placement,
                                              std::uint64_t seed);

/// The copies of set `set` between a pool at `pool` and packed fragments at `host`, where the first
/// set begins. Fragments that are consecutive on both sides are one copy, as the transfer component
/// merges them.
[[nodiscard]] std::vector<gpu::CopyRun> merged_runs(const FragmentSets& sets, std::uint32_t set,
                                                    gpu::CopyDirection direction,
                                                    std::uintptr_t pool, std::uintptr_t host);

}  // namespace kvferry::bench
