// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/policy/policy_race.hpp"

#include "tier_fixture.hpp"

#include <gtest/gtest.h>

#include <span>
#include <string>
#include <vector>

namespace kvferry::cpu_tier {
namespace {

constexpr std::span<const PolicyRule> kAll = kRacingRules;
constexpr PolicyRule kFrequentRule = kRacingRules[0];
constexpr PolicyRule kLruRule = kRacingRules[3];

std::uint64_t hash(std::uint64_t number) { return key(number).mixed(); }

class Race {
 public:
  explicit Race(std::uint32_t num_slots) : race(kAll, num_slots) {}

  void access(std::uint64_t first, std::uint64_t count) {
    for (std::uint64_t i = first; i < first + count; ++i) {
      const std::uint64_t one = hash(i);
      race.access({&one, 1});
    }
  }
  std::string choice() const { return race.current().name; }

  PolicyRace race;
};

TEST(PolicyRace, StartsWithTheLastRuleAndStaysWhileNothingIsEvicted) {
  Race race(100);
  for (int round = 0; round < 10; ++round) race.access(0, 90);
  EXPECT_EQ(race.choice(), "lru");
  EXPECT_EQ(race.race.num_switches(), 0U);
}

TEST(PolicyRace, StopsStoringWhatNobodySendsTwice) {
  Race race(100);
  race.access(0, 1'000);
  EXPECT_NE(race.race.current().admission, AdmissionRule::kAll);
}

TEST(PolicyRace, LoopLargerThanTheTierIsForTheFrequent) {
  Race race(100);
  for (int round = 0; round < 30; ++round) race.access(0, 120);
  EXPECT_EQ(race.choice(), "frequent");
}

TEST(PolicyRace, ReturnsToLruWhenEverythingIsReusedOnceAndSoon) {
  Race race(100);
  race.access(0, 1'000);
  ASSERT_NE(race.choice(), "lru");
  // Each block once more 40 blocks later, and never again: who does not store it at once loses it.
  for (std::uint64_t i = 10'000; i < 13'000; ++i) {
    race.access(i, 1);
    race.access(i - 40, 1);
  }
  EXPECT_EQ(race.race.current().admission, AdmissionRule::kAll);
}

TEST(PolicyRace, SampleOfALargeTierChoosesAsTheWholeWould) {
  Race race(20 * PolicyRace::kMaxShadowSlots);
  const std::uint64_t loop = 24 * PolicyRace::kMaxShadowSlots;
  for (int round = 0; round < 12; ++round) race.access(0, loop);
  EXPECT_EQ(race.choice(), "frequent");
}

TEST(PolicyRace, ResizedTierKeepsItsChoice) {
  Race race(100);
  for (int round = 0; round < 30; ++round) race.access(0, 120);
  race.race.resize(80);
  EXPECT_EQ(race.choice(), "frequent");
}

TEST(PolicyRace, SingleRuleIsNotSimulated) {
  const PolicyRace race({&kLruRule, 1}, 100);
  EXPECT_FALSE(race.runs());
  EXPECT_STREQ(race.current().name, "lru");
}

TEST(ShadowTier, FrequentRuleKeepsWhatIsUsedMoreOften) {
  ShadowTier tier(kFrequentRule, 2);
  using Outcome = ShadowTier::Outcome;
  for (int i = 0; i < 4; ++i) {
    tier.access(hash(1));
    tier.access(hash(2));
  }
  EXPECT_EQ(tier.access(hash(3)), Outcome::kDeclined);  // Never offered before.
  EXPECT_EQ(tier.access(hash(3)), Outcome::kDeclined);  // Twice, against a victim used four times.
  EXPECT_EQ(tier.access(hash(1)), Outcome::kHit);
  EXPECT_EQ(tier.access(hash(2)), Outcome::kHit);
  // Each time a victim is counted down, so that nothing stays for ever.
  Outcome last = Outcome::kDeclined;
  for (int i = 0; i < 20 && last == Outcome::kDeclined; ++i) last = tier.access(hash(3));
  EXPECT_EQ(last, Outcome::kStored);
}

TEST(ShadowTier, RestartIsEmpty) {
  ShadowTier tier(kLruRule, 4);
  tier.access(hash(1));
  tier.restart(2);
  EXPECT_EQ(tier.access(hash(1)), ShadowTier::Outcome::kStored);
}

}  // namespace
}  // namespace kvferry::cpu_tier
