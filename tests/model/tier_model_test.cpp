// SPDX-License-Identifier: Apache-2.0
// Tiers against the reference, for many seeds (tier_run.hpp). One seed makes one run: KVFERRY_SEED
// replays it, KVFERRY_SOAK_SECONDS runs new seeds for that long.
#include "asked.hpp"
#include "tier_run.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <iterator>
#include <random>
#include <string>

namespace kvferry::cpu_tier {
namespace {

constexpr int kStepsPerSeed = 2'000;
// One thread: ThreadSanitizer has nothing to see here, and AddressSanitizer sees it in a few seeds
// of each policy. Both take ten times as long. The release build plays them all.
// GCC says by a macro that a sanitizer is on, clang by __has_feature, which old GCCs cannot parse.
#if defined(__SANITIZE_THREAD__)
constexpr std::uint64_t kSeeds = 7;
#elif defined(__clang__)
constexpr std::uint64_t kSeeds = __has_feature(address_sanitizer) ? 21 : 70;
#else
constexpr std::uint64_t kSeeds = 70;
#endif

/// With promises the reference does not know which blocks leave.
constexpr TierOptions kLru{Eviction::kLru, Admission::kAlways, 0.25F, 0.0F};
constexpr TierOptions kPromises{Eviction::kLru, Admission::kAlways, 0.25F, 0.5F};
constexpr TierOptions kOthers[] = {
    {},
    {Eviction::kArc, Admission::kAlways, 1.0F},
    {Eviction::kLru, Admission::kSecondOffer, 0.0F},
    {Eviction::kAdaptive, Admission::kSecondOffer, 0.5F},
    {Eviction::kArc, Admission::kAdaptive},
    {Eviction::kAdaptive, Admission::kAlways},
    {Eviction::kLru, Admission::kAdaptive},
    kPromises,
};
std::uint64_t num_stays_seen = 0;
std::uint64_t num_early_seen = 0;
std::uint64_t num_withdrawn = 0;

void run(std::uint64_t seed, TierOptions options) {
  SCOPED_TRACE("replay with KVFERRY_SEED=" + std::to_string(seed));
  // From a tier that is nearly always exhausted to one that holds most keys.
  TierRun run(seed, static_cast<std::uint32_t>(8 + seed % 5 * 14),
              static_cast<TierRun::Number>(40 + seed % 3 * 20), options);
  for (int step = 0; step < kStepsPerSeed && !::testing::Test::HasFatalFailure(); ++step)
    run.step();
  run.finish();
  num_stays_seen += run.num_stays_seen();
  num_early_seen += run.num_early_seen();
  num_withdrawn += run.num_withdrawn();
}

template <class OptionsOf>
void run_seeds(const OptionsOf& options_of) {
  if (const auto seed = asked("KVFERRY_SEED")) {
    run(*seed, options_of(*seed));
    return;
  }
  const std::chrono::seconds soak(asked("KVFERRY_SOAK_SECONDS", 0));
  const auto start = std::chrono::steady_clock::now();
  std::uint64_t first = soak.count() == 0 ? 0 : std::random_device()();
  for (std::uint64_t done = 0;
       (soak.count() == 0 ? done < kSeeds : std::chrono::steady_clock::now() - start < soak) &&
       !::testing::Test::HasFailure();
       ++done) {
    run(first + done, options_of(first + done));
  }
}

TEST(TierModel, EveryStepAgreesWithTheReference) {
  run_seeds([](std::uint64_t) { return kLru; });
}

// Conservation, exact capacity, and nobody evicted who is leased, or awaited while others are
// there. Blocks do stay by promises and leave early in these runs, and no reservation fails for it.
TEST(TierModel, EveryPolicyEvictsOnlyWhatItMay) {
  run_seeds([](std::uint64_t seed) { return kOthers[seed % std::size(kOthers)]; });
  if (HasFailure() || asked("KVFERRY_SEED")) return;
  EXPECT_GT(num_stays_seen, 14 * kSeeds);
  EXPECT_GE(num_early_seen, kSeeds / 7);
  EXPECT_GE(num_withdrawn, kSeeds / 2);
}

}  // namespace
}  // namespace kvferry::cpu_tier
