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

/// One way to choose what a tier keeps. It is a policy of Tier, written as "eviction" or
/// "eviction/admission" of TierOptions ("lru" and "arc" always store, "adaptive" adapts both), or a
/// reference.
struct Policy {
  std::string name;
  bool by_default = false;  ///< Whether it is shown if the user names no policies.
  bool listens = false;     ///< Whether it follows hints; references do not.
  std::function<ReplayResult(const Trace&, std::uint32_t capacity, std::uint32_t num_queued,
                             HintStyle hints)>
      replay;
};

/// The name of the clairvoyant optimum.
inline constexpr const char* kOptimum = "optimum";

/// All policies, the optimum last.
[[nodiscard]] std::span<const Policy> policies();
/// The policy with that name; "belady" is the optimum. For other names it throws a ConfigError that
/// lists the policies.
[[nodiscard]] const Policy& policy_named(std::string_view name);
/// The policies with these names, where "all" means all; without names the default ones.
[[nodiscard]] std::vector<const Policy*> policies_named(std::span<const std::string> names);

}  // namespace kvferry::bench::trace
