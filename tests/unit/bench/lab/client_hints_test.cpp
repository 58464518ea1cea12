// SPDX-License-Identifier: Apache-2.0
// What clients' hints win and cost, on every kind of made-up traffic and on the public trace. One
// seed by default; KVFERRY_SOAK_SECONDS runs new ones for that long, on tiers of any size.
#include "trace/families.hpp"
#include "trace/read_trace.hpp"
#include "trace/replay.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <random>
#include <string>

namespace kvferry::bench::trace {
namespace {

using cpu_tier::Admission;
using cpu_tier::Eviction;
using cpu_tier::TierOptions;

constexpr TierOptions kOptions[] = {
    {}, {Eviction::kLru, Admission::kAlways}, {Eviction::kArc, Admission::kAdaptive}};

/// In points of all tokens.
constexpr double kMostLost = 0.3;

double loaded_percent(const Trace& trace, std::uint32_t capacity, const TierOptions& options,
                      HintStyle hints) {
  const ReplayResult result = replay_tier(trace, capacity, options, 0, hints);
  return 100.0 * static_cast<double>(result.num_loaded_tokens) /
         static_cast<double>(trace.num_tokens());
}

void expect_bounded_harm(const Trace& trace, const char* name, std::uint32_t capacity,
                         const TierOptions& options) {
  const double without = loaded_percent(trace, capacity, options, HintStyle::kNone);
  for (const HintStyle style : {HintStyle::kRight, HintStyle::kWrong, HintStyle::kRandom,
                                HintStyle::kRetain, HintStyle::kDemote}) {
    const double with = loaded_percent(trace, capacity, options, style);
    if (std::getenv("KVFERRY_SHOW")) {
      printf("%-20s %6u %-8s %-8s %6.2f %+6.2f\n", name, capacity, to_string(options.eviction),
             to_string(style), without, with - without);
    }
    EXPECT_GE(with, without - kMostLost)
        << name << ", " << capacity << " blocks, " << to_string(options.eviction) << ", "
        << to_string(style) << " hints";
  }
}

TEST(ClientHints, CostAtMostThreeTenthsOfAPointOnAnyKindOfTraffic) {
  const char* const text = std::getenv("KVFERRY_SOAK_SECONDS");
  const std::chrono::seconds soak(text == nullptr ? 0 : std::strtol(text, nullptr, 10));
  const auto start = std::chrono::steady_clock::now();
  std::random_device entropy;
  do {
    const bool is_soak = soak.count() > 0;
    const std::uint64_t seed = is_soak ? entropy() : 3;
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    for (const Family& family : families()) {
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

TEST(ClientHints, CostAtMostThreeTenthsOfAPointOnThePublicTrace) {
  const char* const named = std::getenv("KVFERRY_MOONCAKE_TRACE");
  const std::filesystem::path file = named != nullptr
                                         ? std::filesystem::path(named)
                                         : std::filesystem::path(KVFERRY_SOURCE_DIR) /
                                               "../shared/traces/mooncake_conversation_trace.jsonl";
  if (!std::filesystem::exists(file)) {
    GTEST_SKIP() << "no " << file << ": KVFERRY_MOONCAKE_TRACE may name it";
  }
  const Trace trace = read_trace(file);
  for (const std::uint32_t capacity : {3'000U, 16'000U}) {
    for (const TierOptions& options : kOptions) {
      expect_bounded_harm(trace, "mooncake", capacity, options);
    }
  }
}

}  // namespace
}  // namespace kvferry::bench::trace
