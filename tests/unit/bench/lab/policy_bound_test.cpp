// SPDX-License-Identifier: Apache-2.0
// What the default policy loads, against plain LRU and the best fixed policy, on random mixtures of
// traffic. Some seeds by default; KVFERRY_SOAK_SECONDS runs new ones for that long. A failure names
// the seed, which KVFERRY_MIXTURE replays.
#include "asked.hpp"
#include "lab/loaded_percent.hpp"
#include "lab/public_trace.hpp"
#include "trace/families.hpp"
#include "trace/random_mixture.hpp"
#include "trace/replay.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <iostream>
#include <optional>
#include <random>
#include <string>

namespace kvferry::bench::trace {
namespace {

using cpu_tier::Admission;
using cpu_tier::Eviction;
using cpu_tier::TierOptions;

constexpr TierOptions kLru{Eviction::kLru, Admission::kAlways};
constexpr TierOptions kSecondOffer{Eviction::kLru, Admission::kSecondOffer};

/// In points of all tokens.
constexpr double kMostBelowLru = 0.5;
constexpr double kMostBelowBest = 1.0;
/// To learn which rule is the best takes some tiers full of accesses.
constexpr double kTurnoversToLearn = 100;
/// Of the runs of a soak. A rule that is followed when the traffic changes costs a tier full of
/// loads at most: that is more than kMostBelowLru of a trace of few tiers full.
constexpr double kMostRunsBelow = 0.01;

/// Of the blocks that a trace has.
constexpr std::array kShares{0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.7, 1.0};

std::uint32_t capacity_of(const Trace& trace, double share) {
  return std::max(1U, static_cast<std::uint32_t>(share * trace.num_distinct()));
}

/// Returns how many points the default is below LRU.
double expect_bound(const Trace& trace, const std::string& about, double share,
                    double most_below_lru = kMostBelowLru) {
  const std::uint32_t capacity = capacity_of(trace, share);
  const double by_default = loaded_percent(trace, capacity, {});
  const double by_lru = loaded_percent(trace, capacity, kLru);
  const std::string what = about + ", " + std::to_string(capacity) + " blocks";
  EXPECT_GE(by_default, by_lru - most_below_lru) << what;
  const double num_turnovers = static_cast<double>(trace.num_accesses()) / capacity;
  if (num_turnovers >= kTurnoversToLearn && most_below_lru == kMostBelowLru) {
    const double best = std::max(by_lru, loaded_percent(trace, capacity, kSecondOffer));
    EXPECT_GE(by_default, best - kMostBelowBest) << what;
  }
  return by_lru - by_default;
}

std::string text_of(std::uint64_t seed, const Mixture& mixture) {
  return "mixture " + std::to_string(seed) + ": " + mixture.about;
}

TEST(PolicyBound, HoldsOnRandomMixtures) {
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    const Mixture mixture = random_mixture(seed);
    // Each seed has some of the sizes, and all of them together have each.
    for (const std::size_t which : {seed, seed + 4}) {
      expect_bound(mixture.trace, text_of(seed, mixture), kShares[which % kShares.size()]);
    }
  }
}

TEST(PolicyBound, HoldsOnMoreRandomMixturesIfThereIsTime) {
  const auto named = asked("KVFERRY_MIXTURE");
  const auto seconds = asked("KVFERRY_SOAK_SECONDS");
  if (!named && !seconds) GTEST_SKIP() << "KVFERRY_SOAK_SECONDS says how long";
  const std::chrono::seconds soak(seconds.value_or(0));
  const auto start = std::chrono::steady_clock::now();
  std::random_device entropy;
  int num_runs = 0;
  int num_below = 0;
  double most = 0;
  double gain = 0;
  do {
    const std::uint64_t seed = named ? *named : entropy();
    const Mixture mixture = random_mixture(seed);
    for (const double share : kShares) {
      const double once = 100.0 * capacity_of(mixture.trace, share) /
                          static_cast<double>(mixture.trace.num_accesses());
      const double below =
          expect_bound(mixture.trace, text_of(seed, mixture), share, kMostBelowLru + once);
      ++num_runs;
      most = std::max(most, below);
      gain -= below;
      if (below <= kMostBelowLru) continue;
      ++num_below;
      std::cout << below << " points below LRU: " << text_of(seed, mixture) << ", share " << share
                << '\n';
    }
  } while (!HasFailure() && std::chrono::steady_clock::now() - start < soak);
  std::cout << num_runs << " runs of random mixtures, " << num_below << " of them more than "
            << kMostBelowLru << " points below LRU, the worst one " << most
            << "; mean gain over LRU: " << gain / num_runs << '\n';
  if (num_runs >= 500) {
    EXPECT_LE(num_below, kMostRunsBelow * num_runs);
  }
}

TEST(PolicyBound, HoldsOnEachKindOfTraffic) {
  for (const Family& family : families()) expect_bound(family.make(3), family.name, 0.1);
}

TEST(PolicyBound, HoldsOnThePublicTrace) {
  const std::optional<Trace> trace = public_trace();
  if (!trace) GTEST_SKIP() << kNoPublicTrace;
  for (const double share : kShares) expect_bound(*trace, "mooncake", share);
}

TEST(RandomMixture, IsTheSameForTheSameSeed) {
  const Mixture once = random_mixture(5);
  const Mixture again = random_mixture(5);
  EXPECT_EQ(once.about, again.about);
  ASSERT_EQ(once.trace.num_requests(), again.trace.num_requests());
  for (std::size_t i = 0; i < once.trace.num_requests(); ++i) {
    ASSERT_TRUE(std::ranges::equal(once.trace.request(i), again.trace.request(i))) << i;
  }
  EXPECT_NE(once.trace.num_accesses(), random_mixture(6).trace.num_accesses());
}

}  // namespace
}  // namespace kvferry::bench::trace
