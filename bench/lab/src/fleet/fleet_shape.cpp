// SPDX-License-Identifier: Apache-2.0
#include "fleet/fleet_shape.hpp"

#include "kvferry/base/error.hpp"

#include <fmt/format.h>

#include <array>
#include <span>
#include <string>

namespace kvferry::bench::fleet {
namespace {

// In the order of the enumerations.
constexpr std::array<const char*, 3> kRoutings = {"random", "least_loaded", "kv_aware"};
constexpr std::array<const char*, 4> kFarTiers = {"none", "tier_first", "far_first", "both"};

template <class E>
E from(std::string_view text, std::span<const char* const> names, const char* what) {
  std::string known;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (text == names[i]) return static_cast<E>(i);
    known += i == 0 ? "" : i + 1 < names.size() ? ", " : " or ";
    known += names[i];
  }
  throw ConfigError(fmt::format("'{}' is not a value of {}: write {}", text, what, known));
}

}  // namespace

Routing routing_from(std::string_view text) { return from<Routing>(text, kRoutings, "--routing"); }

FarTier far_tier_from(std::string_view text) {
  return from<FarTier>(text, kFarTiers, "--far-tier");
}

const char* to_string(Routing routing) { return kRoutings[static_cast<std::size_t>(routing)]; }

const char* to_string(FarTier far_tier) { return kFarTiers[static_cast<std::size_t>(far_tier)]; }

}  // namespace kvferry::bench::fleet
