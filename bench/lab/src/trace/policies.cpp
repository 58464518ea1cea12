// SPDX-License-Identifier: Apache-2.0
#include "trace/policies.hpp"

#include "kvferry/base/error.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace kvferry::bench::trace {
namespace {

using cpu_tier::Admission;
using cpu_tier::Eviction;
using cpu_tier::TierOptions;

enum class Shown : std::uint8_t { kByDefault, kOnDemand };

Policy tier(const char* name, Eviction eviction, Admission admission, Shown shown) {
  return {
      name, shown == Shown::kByDefault, true,
      [=](const Trace& trace, std::uint32_t capacity, std::uint32_t num_queued, HintStyle hints) {
        TierOptions options;
        options.eviction = eviction;
        options.admission = admission;
        return replay_tier(trace, capacity, options, num_queued, hints);
      }};
}

Policy reference(const char* name, Reference policy, Shown shown) {
  return {name, shown == Shown::kByDefault, false,
          [=](const Trace& trace, std::uint32_t capacity, std::uint32_t, HintStyle) {
            return replay_reference(trace, capacity, policy);
          }};
}

}  // namespace

std::span<const Policy> policies() {
  constexpr Shown kByDefault = Shown::kByDefault;
  constexpr Shown kOnDemand = Shown::kOnDemand;
  static const std::vector<Policy> kAll{
      tier("lru", Eviction::kLru, Admission::kAlways, kByDefault),
      tier("arc", Eviction::kArc, Admission::kAlways, kByDefault),
      reference("s3-fifo", Reference::kS3Fifo, kByDefault),
      reference("sieve", Reference::kSieve, kOnDemand),
      reference("second-sight", Reference::kSecondSight, kOnDemand),
      tier("lru/second_offer", Eviction::kLru, Admission::kSecondOffer, kOnDemand),
      tier("lru/adaptive", Eviction::kLru, Admission::kAdaptive, kOnDemand),
      tier("arc/adaptive", Eviction::kArc, Admission::kAdaptive, kOnDemand),
      tier("adaptive/always", Eviction::kAdaptive, Admission::kAlways, kOnDemand),
      tier("adaptive", Eviction::kAdaptive, Admission::kAdaptive, kByDefault),
      reference(kOptimum, Reference::kOptimum, kByDefault),
  };
  return kAll;
}

const Policy& policy_named(std::string_view name) {
  if (name == "belady") name = kOptimum;
  std::string known;
  for (const Policy& policy : policies()) {
    if (policy.name == name) return policy;
    known += policy.name + ", ";
  }
  throw ConfigError(fmt::format("'{}' is not a policy: write {}all", name, known));
}

std::vector<const Policy*> policies_named(std::span<const std::string> names) {
  std::vector<const Policy*> chosen;
  const auto add = [&chosen](const Policy& policy) {
    if (std::find(chosen.begin(), chosen.end(), &policy) == chosen.end()) {
      chosen.push_back(&policy);
    }
  };
  for (const std::string& name : names) {
    if (name == "all") {
      for (const Policy& policy : policies()) add(policy);
    } else {
      add(policy_named(name));
    }
  }
  if (names.empty()) {
    for (const Policy& policy : policies()) {
      if (policy.by_default) add(policy);
    }
  }
  return chosen;
}

}  // namespace kvferry::bench::trace
