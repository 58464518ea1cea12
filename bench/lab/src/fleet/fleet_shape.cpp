// SPDX-License-Identifier: Apache-2.0
#include "fleet/fleet_shape.hpp"

#include "options/named_value.hpp"

#include <array>
#include <cstddef>

namespace kvferry::bench::fleet {
namespace {

// In the order of the enumerations.
constexpr std::array<const char*, 3> kRoutings = {"random", "least_loaded", "kv_aware"};
constexpr std::array<const char*, 4> kFarTiers = {"none", "tier_first", "far_first", "both"};

}  // namespace

Routing routing_from(std::string_view text) {
  return value_from<Routing>(text, kRoutings, "--routing");
}

FarTier far_tier_from(std::string_view text) {
  return value_from<FarTier>(text, kFarTiers, "--far-tier");
}

const char* to_string(Routing routing) { return kRoutings[static_cast<std::size_t>(routing)]; }

const char* to_string(FarTier far_tier) { return kFarTiers[static_cast<std::size_t>(far_tier)]; }

}  // namespace kvferry::bench::fleet
