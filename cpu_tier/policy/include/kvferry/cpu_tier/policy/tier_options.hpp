// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

namespace kvferry::cpu_tier {

/// Which blocks leave when room is needed.
enum class Eviction : std::uint8_t {
  kLru,      ///< The least recently used one.
  kArc,      ///< ARC (Megiddo, Modha 2003): seen once against seen again, by ghost hits.
  kAdaptive  ///< Whatever would have hit most lately, of the rules in policy_rule.hpp.
};

/// Which blocks are stored at all, once the tier is full. (While it has free slots, all are.)
enum class Admission : std::uint8_t {
  kAlways,
  kSecondOffer,  ///< Those that were offered before.
  kAdaptive      ///< As the rule that would have hit most lately says.
};

struct TierOptions {
  Eviction eviction = Eviction::kAdaptive;
  Admission admission = Admission::kAdaptive;
  /// Most of the tier's slots that are kept for queued requests (Tier::await()), as a share in
  /// [0, 1]; 0 switches the look-ahead off.
  float max_awaited_share = 0.25F;
  /// Whether Tier::take_key_events() tells anything; somebody has to take them then.
  bool key_events = false;
};

[[nodiscard]] const char* to_string(Eviction eviction);
[[nodiscard]] const char* to_string(Admission admission);
/// The inverse of to_string(). Throw ConfigError that lists the names.
[[nodiscard]] Eviction eviction_from(std::string_view name);
[[nodiscard]] Admission admission_from(std::string_view name);

}  // namespace kvferry::cpu_tier
