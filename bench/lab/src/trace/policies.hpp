// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trace/replay.hpp"

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvferry::bench::trace {

/// One way to choose what a tier keeps: of Tier, as "eviction" or "eviction/admission" of
/// TierOptions ("lru" and "arc" store always, "adaptive" is both), or a reference.
struct Policy {
  std::string name;
  bool by_default = false;  ///< Among the few that are shown unless others are asked for.
  bool listens = false;     ///< To hints: references do not.
  std::function<ReplayResult(const Trace&, std::uint32_t capacity, std::uint32_t num_queued,
                             HintStyle hints)>
      replay;
};

/// The clairvoyant optimum's.
inline constexpr const char* kOptimum = "optimum";

/// All of them, the optimum last.
[[nodiscard]] std::span<const Policy> policies();
/// Of that name; "belady" is the optimum. Throws ConfigError that lists them.
[[nodiscard]] const Policy& policy_named(std::string_view name);
/// Those of the names, where "all" is all; without names those by default.
[[nodiscard]] std::vector<const Policy*> policies_named(std::span<const std::string> names);

}  // namespace kvferry::bench::trace
