// SPDX-License-Identifier: Apache-2.0
// What clients' hints win and cost, on made-up traffic and on the public trace. One seed and a
// third of the kinds by default; KVFERRY_SOAK_SECONDS runs new ones of all kinds for that long, on
// tiers of any size.
#include "asked.hpp"
#include "lab/loaded_percent.hpp"
#include "lab/public_trace.hpp"
#include "trace/families.hpp"
#include "trace/replay.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <optional>
#include <random>
#include <string>
#include <string_view>

namespace kvferry::bench::trace {
namespace {

using cpu_tier::Admission;
using cpu_tier::Eviction;
using cpu_tier::TierOptions;

constexpr TierOptions kOptions[] = {
    {}, {Eviction::kLru, Admission::kAlways}, {Eviction::kArc, Admission::kAdaptive}};

/// In points of all tokens.
constexpr double kMostLost = 0.3;

void expect_bounded_harm(const Trace& trace, const char* name, std::uint32_t capacity,
                         const TierOptions& options) {
  const double without = loaded_percent(trace, capacity, options, HintStyle::kNone);
  for (const HintStyle style : {HintStyle::kRight, HintStyle::kWrong, HintStyle::kRandom,
                                HintStyle::kRetain, HintStyle::kDemote}) {
    const double with = loaded_percent(trace, capacity, options, style);
    EXPECT_GE(with, without - kMostLost)
        << name << ", " << capacity << " blocks, " << to_string(options.eviction) << ", "
        << to_string(style) << " hints";
  }
}

TEST(ClientHints, CostAtMostThreeTenthsOfAPointOnAnyKindOfTraffic) {
  const std::chrono::seconds soak(asked("KVFERRY_SOAK_SECONDS", 0));
  const auto start = std::chrono::steady_clock::now();
  std::random_device entropy;
  do {
    const bool is_soak = soak.count() > 0;
    const std::uint64_t seed = is_soak ? entropy() : 3;
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    for (std::size_t which = 0; which < families().size(); which += is_soak ? 1 : 3) {
      const Family& family = families()[which];
      const Trace trace = family.make(seed);
      const auto capacity = is_soak
                                ? static_cast<std::uint32_t>(200 + random() % (3 * kFamilyCapacity))
                                : kFamilyCapacity;
      for (const TierOptions& options : kOptions) {
        expect_bounded_harm(trace, family.name, capacity, options);
      }
    }
  } while (!HasFailure() && std::chrono::steady_clock::now() - start < soak);
}

// Conversations that wait for their clients, alone and among prompts that nobody sends twice.
TEST(ClientHints, WinWhenTheyAreRight) {
  for (const Family& family : families()) {
    const std::string_view name = family.name;
    const double least = name == "sessions-100" ? 3 : name == "sessions+one-shot" ? 4 : 0;
    if (least == 0) continue;
    const Trace trace = family.make(3);
    const TierOptions& lru = kOptions[1];
    EXPECT_GT(loaded_percent(trace, kFamilyCapacity, lru, HintStyle::kRight),
              loaded_percent(trace, kFamilyCapacity, lru, HintStyle::kNone) + least)
        << name;
  }
}

TEST(ClientHints, CostAtMostThreeTenthsOfAPointOnThePublicTrace) {
  const std::optional<Trace> trace = public_trace();
  if (!trace) GTEST_SKIP() << kNoPublicTrace;
  expect_bounded_harm(*trace, "mooncake", 3'000, kOptions[0]);
  expect_bounded_harm(*trace, "mooncake", 3'000, kOptions[1]);
}

}  // namespace
}  // namespace kvferry::bench::trace
