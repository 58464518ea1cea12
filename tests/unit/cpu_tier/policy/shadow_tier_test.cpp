// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/policy/shadow_tier.hpp"

#include "kvferry/cpu_tier/policy/eviction_table.hpp"

#include "tier_fixture.hpp"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace kvferry::cpu_tier {
namespace {

constexpr PolicyRule kFrequentRule = kRacingRules[0];
constexpr PolicyRule kSecondOfferRule = kRacingRules[1];
constexpr PolicyRule kLruRule = kRacingRules[3];

using Outcome = ShadowTier::Outcome;

/// Blocks first, first + 1, ... of a prompt.
Outcome offer(ShadowTier& tier, std::uint64_t first, std::uint64_t count) {
  std::vector<std::uint64_t> hashes;
  for (std::uint64_t i = count; i-- > 0;) hashes.push_back(key(first + i).mixed());
  return tier.offer(hashes);
}

TEST(ShadowTier, OnlyWhatStandsBeforeTheFirstAbsentBlockIsLoaded) {
  ShadowTier tier(kLruRule, 8);
  EXPECT_EQ(offer(tier, 0, 2).num_stores, 2U);
  EXPECT_EQ(offer(tier, 3, 2).num_stores, 2U);
  const Outcome outcome = offer(tier, 0, 5);
  EXPECT_EQ(outcome.num_loads, 2U) << "3 and 4 are held, and 2 is not";
  EXPECT_EQ(outcome.num_stores, 1U);
}

TEST(ShadowTier, TailsLeaveBeforeHeads) {
  ShadowTier tier(kLruRule, 6);
  offer(tier, 0, 6);
  offer(tier, 10, 2);
  EXPECT_EQ(offer(tier, 0, 6).num_loads, 4U);
}

TEST(ShadowTier, LongPromptKeepsItsHead) {
  ShadowTier tier(kLruRule, 6);
  tier.restart(4);
  EXPECT_EQ(offer(tier, 0, 6).num_stores, 4U);
  EXPECT_EQ(offer(tier, 0, 6).num_loads, 4U);
  EXPECT_EQ(offer(tier, 0, 6).num_stores, 0U);
}

TEST(ShadowTier, APromptAsLongAsTheTierIsOneOffer) {
  ShadowTier tier(kLruRule, 2000);
  EXPECT_EQ(offer(tier, 0, 2000).num_stores, 2000U);
  offer(tier, 5000, 100);
  EXPECT_EQ(offer(tier, 0, 2000).num_loads, 1900U);
}

TEST(ShadowTier, SecondOfferStoresWhatLaterBlocksProve) {
  ShadowTier tier(kSecondOfferRule, 4);
  offer(tier, 100, 4);
  EXPECT_EQ(offer(tier, 11, 2).num_stores, 0U);
  EXPECT_EQ(offer(tier, 10, 4).num_stores, 3U) << "12 proves 10 and 11; 13 is new";
  EXPECT_EQ(offer(tier, 10, 4).num_loads, 3U);
}

TEST(ShadowTier, FrequentRuleKeepsWhatIsUsedMoreOften) {
  ShadowTier tier(kFrequentRule, 2);
  for (int i = 0; i < 4; ++i) offer(tier, 1, 2);
  EXPECT_EQ(offer(tier, 3, 1).num_stores, 0U);  // Never offered before.
  EXPECT_EQ(offer(tier, 3, 1).num_stores, 0U);  // Twice, against a victim used four times.
  EXPECT_EQ(offer(tier, 1, 2).num_loads, 2U);
  // Each time a victim is counted down, so that nothing stays for ever.
  std::uint32_t num_stores = 0;
  for (int i = 0; i < 20 && num_stores == 0; ++i) num_stores = offer(tier, 3, 1).num_stores;
  EXPECT_EQ(num_stores, 1U);
  EXPECT_EQ(offer(tier, 1, 1).num_loads, 1U) << "2 has left, the tail";
}

TEST(ShadowTier, CountsWhatAnotherHasAndItHasNot) {
  ShadowTier lru(kLruRule, 4);
  ShadowTier other(kSecondOfferRule, 4);
  for (ShadowTier* tier : {&lru, &other}) {
    offer(*tier, 0, 4);
    offer(*tier, 10, 3);
  }
  EXPECT_EQ(other.num_missing_of(lru), 3U);
  EXPECT_EQ(lru.num_missing_of(lru), 0U);
}

TEST(ShadowTier, RestartIsEmpty) {
  ShadowTier tier(kLruRule, 4);
  offer(tier, 1, 1);
  tier.restart(2);
  EXPECT_EQ(offer(tier, 1, 1).num_loads, 0U);
}

/// What is tested of a rule: that it leaves no hole, whatever is asked for.
class ShadowTierRules : public testing::TestWithParam<PolicyRule> {};

// Prompts that share prefixes of any length.
TEST_P(ShadowTierRules, LoadsAreWhatTheRealTierLoadsAndThereAreNoHoles) {
  std::mt19937_64 random(11);
  ShadowTier tier(GetParam(), 60);
  std::vector<std::vector<std::uint64_t>> prompts;
  std::uint64_t next = 0;
  for (int i = 0; i < 3'000; ++i) {
    std::vector<std::uint64_t> prompt;
    if (!prompts.empty() && random() % 4 != 0) {
      prompt = prompts[prompts.size() - 1 - random() % std::min<std::size_t>(prompts.size(), 30)];
      prompt.resize(1 + random() % prompt.size());
    }
    for (std::uint64_t left = 1 + random() % 6; left > 0 && prompt.size() < 40; --left) {
      prompt.push_back(next++);
    }
    prompts.push_back(prompt);
    std::vector<std::uint64_t> hashes;
    for (std::size_t k = prompt.size(); k-- > 0;) hashes.push_back(key(prompt[k]).mixed());
    const Outcome outcome = tier.offer(hashes);
    EXPECT_EQ(outcome.num_loads, outcome.num_held) << "prompt " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(All, ShadowTierRules, testing::ValuesIn(kRacingRules),
                         [](const auto& one) { return std::string(one.param.name); });

}  // namespace
}  // namespace kvferry::cpu_tier
