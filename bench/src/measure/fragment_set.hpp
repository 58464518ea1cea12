// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/ids.hpp"
#include "kvferry/gpu/device.hpp"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kvferry::bench {

/// How the fragments lie in the device's pool; in host memory they always lie packed, as in a slot.
struct Placement {
  /// Fragments in a row before the next jump: 1 is shuffled, 0 contiguous.
  std::uint32_t run_length = 1;
};
/// "contiguous", "shuffled", "runs:8". Throws ConfigError.
[[nodiscard]] Placement placement_from(std::string_view text);
[[nodiscard]] std::string to_string(const Placement& placement);

/// Fragments of one size, in sets of `count` that are copied one after the other.
struct FragmentSets {
  std::uint64_t fragment_bytes = 0;
  std::uint32_t count = 0;
  std::uint32_t num_sets = 1;
  /// Where in the pool each fragment lies, in fragments; those of the first set first. All
  /// different.
  std::vector<BlockId> places;
  /// Fragments that the pool has room for: more than `places`, so that runs do not touch.
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

/// The copies of set `set` between a pool at `pool` and packed fragments at `host`, the first set's
/// first fragment there; what lies in a row on both sides is one copy, as the transfer component
/// merges it.
[[nodiscard]] std::vector<gpu::CopyRun> merged_runs(const FragmentSets& sets, std::uint32_t set,
                                                    gpu::CopyDirection direction,
                                                    std::uintptr_t pool, std::uintptr_t host);

}  // namespace kvferry::bench
