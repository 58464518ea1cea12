// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fleet/fleet_shape.hpp"
#include "trace/trace.hpp"

#include <cstdint>
#include <functional>

namespace kvferry::bench::fleet {

/// What a fleet did. Counts of blocks and tokens are sums over all nodes.
struct FleetResult {
  std::uint64_t num_requests = 0;
  std::uint64_t num_tokens = 0;   ///< Of all prompts: loaded and computed ones.
  std::uint64_t near_tokens = 0;  ///< Loaded from the node's own tier.
  std::uint64_t far_tokens = 0;   ///< Loaded from the far tier.
  std::uint64_t computed_tokens = 0;
  std::uint64_t near_loads = 0;   ///< Blocks.
  std::uint64_t near_stores = 0;  ///< Blocks.
  std::uint64_t far_loads = 0;    ///< Blocks.
  std::uint64_t far_stores = 0;   ///< Blocks.
  /// Blocks that were stored and not evicted, counted by stores and evictions, and in the tiers.
  std::uint64_t num_left = 0;
  std::uint64_t num_resident = 0;
  /// Tokens that the busiest engine computed, over the mean of all engines.
  double busiest_over_mean = 0;
  double ttft_mean_s = 0;  ///< Time to first token: queue, loads and computation.
  double ttft_p99_s = 0;
};

/// Simulates a fleet on the real tier's metadata, in virtual time. Requests come one after the
/// other: each time a random tenant sends its next one. The router picks a node. Its engine loads
/// the prefix that it finds and computes the rest, one prompt at a time, first come, first served;
/// loads of waiting prompts run beside that, and links have no queue. At the same time the node's
/// tier and the far tier store what they lack, so the next request finds it. The same seed gives
/// the same result. `progress` is called now and then with the requests done so far, and with all.
[[nodiscard]] FleetResult simulate_fleet(
    const trace::Trace& requests, const FleetShape& shape, std::uint64_t seed,
    const std::function<void(std::uint64_t done, std::uint64_t all)>& progress);

}  // namespace kvferry::bench::fleet
