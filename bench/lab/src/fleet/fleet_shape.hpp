// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trace/time_saved.hpp"

#include <cstdint>
#include <string_view>

namespace kvferry::bench::fleet {

/// How a router chooses the node of a request.
enum class Routing : std::uint8_t {
  kRandom,
  kLeastLoaded,  ///< The node whose engine is free first.
  /// The node that will give the first token first: it knows every node's queue, and which blocks
  /// each tier and the far tier hold. (Dynamo's router weighs the same two: blocks to compute, and
  /// load.)
  kKvAware
};

/// How an engine loads a prompt from its node's tier, and from a far tier that all nodes share.
enum class FarTier : std::uint8_t {
  kNone,       ///< There is no far tier.
  kTierFirst,  ///< The far tier loads only prompts of which the node's own tier has no block.
  kFarFirst,   ///< The own tier loads only prompts of which the far tier has no block.
  kBoth        ///< The far tier loads what continues the prefix in the own tier.
};

/// Read the names that to_string() returns. For others they throw a ConfigError that lists them.
[[nodiscard]] Routing routing_from(std::string_view text);
[[nodiscard]] FarTier far_tier_from(std::string_view text);
[[nodiscard]] const char* to_string(Routing routing);
[[nodiscard]] const char* to_string(FarTier far_tier);

/// Nodes with an engine and a tier each.
struct FleetShape {
  std::uint32_t num_nodes = 1;
  std::uint32_t tier_blocks = 1;  ///< Of each node.
  Routing routing = Routing::kRandom;
  FarTier far_tier = FarTier::kNone;
  std::uint32_t far_blocks = 1;  ///< Of the far tier.
  /// Tenants that send the trace's requests, each with its own blocks.
  std::uint32_t num_tenants = 1;
  /// The share of their time, in (0, 1), that engines would compute if no tier held anything.
  /// Requests arrive at random with the rate that follows.
  double offered_load = 0.7;
  trace::TimeModel time;
  double far_gb_per_s = 1;  ///< Of one node's connection to the far tier.
};

}  // namespace kvferry::bench::fleet
