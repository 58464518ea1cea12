// SPDX-License-Identifier: Apache-2.0
#include "check_sampler.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>

namespace kvferry::transfer {
namespace {

using std::chrono::nanoseconds;

/// A load without blocks: nothing in it is unknown.
std::uint32_t num_chosen(CheckSampler& sampler, std::uint32_t num_loads) {
  const Piece load;
  std::uint32_t chosen = 0;
  for (std::uint32_t i = 0; i < num_loads; ++i) chosen += sampler.chooses(load) ? 1 : 0;
  return chosen;
}

void learn(CheckSampler& sampler, bool is_checked, int ns_per_kib) {
  for (int i = 0; i < 2000; ++i) sampler.learn(is_checked, 1024, nanoseconds(ns_per_kib));
}

TEST(CheckSamplerTest, OffChoosesNothingAndAllChoosesEverything) {
  const KnownBlocks known(false);
  CheckSampler off(Verification::kOff, known);
  CheckSampler all(Verification::kAll, known);
  EXPECT_EQ(num_chosen(off, 1000), 0U);
  EXPECT_EQ(num_chosen(all, 1000), 1000U);
}

TEST(CheckSamplerTest, HalfIsCheckedUntilTheCostIsKnown) {
  const KnownBlocks known(true);
  CheckSampler sampler(Verification::kSampled, known);
  EXPECT_EQ(num_chosen(sampler, 100), 50U);
  learn(sampler, true, 500);
  EXPECT_EQ(sampler.period(), 2U) << "what an unchecked load takes is not known";
}

TEST(CheckSamplerTest, ChecksTakeOnePercentAtMost) {
  const KnownBlocks known(true);
  CheckSampler sampler(Verification::kSampled, known);
  learn(sampler, false, 1000);
  learn(sampler, true, 1250);
  EXPECT_EQ(sampler.period(), 25U);
  EXPECT_EQ(num_chosen(sampler, 250), 10U);
}

TEST(CheckSamplerTest, OneIn256IsCheckedWhateverItCosts) {
  const KnownBlocks known(true);
  CheckSampler sampler(Verification::kSampled, known);
  learn(sampler, false, 10);
  learn(sampler, true, 10000);
  EXPECT_EQ(num_chosen(sampler, 2560), 10U);
}

TEST(CheckSamplerTest, FollowsCostsThatChange) {
  const KnownBlocks known(true);
  CheckSampler sampler(Verification::kSampled, known);
  learn(sampler, false, 1000);
  learn(sampler, true, 2000);
  ASSERT_EQ(sampler.period(), 100U);
  learn(sampler, true, 990);
  EXPECT_EQ(sampler.period(), CheckSampler::kMinPeriod);
}

TEST(CheckSamplerTest, ATimeThatIsNotKnownTeachesNothing) {
  const KnownBlocks known(true);
  CheckSampler sampler(Verification::kSampled, known);
  for (int i = 0; i < 100; ++i) {
    sampler.learn(false, 1024, nanoseconds(0));
    sampler.learn(true, 0, nanoseconds(5));
  }
  EXPECT_EQ(sampler.period(), CheckSampler::kMinPeriod);
}

}  // namespace
}  // namespace kvferry::transfer
