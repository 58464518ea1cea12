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
constexpr PolicyRule kRaceLru = kRacingRules[3];

/// The race of a tier that can load nothing, as LRU's does on the traffic of most tests.
class Race {
 public:
  explicit Race(std::uint32_t num_slots) : race(kAll, num_slots) {}

  /// Prompts of one block each.
  void access(std::uint64_t first, std::uint64_t count) {
    for (std::uint64_t i = first; i < first + count; ++i) {
      race.offered(hash(i), PolicyRace::Presence::kAbsent);
      race.end_offer();
    }
  }
  /// One prompt again and again, which LRU would hold and the tier does not.
  void repeat(std::uint64_t which, int count) {
    for (; count > 0; --count) access(which, 1);
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

TEST(PolicyRace, StopsStoringWhatNobodySendsTwiceAfterAWhile) {
  Race race(100);
  race.access(0, 4'000);
  EXPECT_EQ(race.choice(), "lru");
  race.access(4'000, 8'000);
  EXPECT_NE(race.race.current().admission, AdmissionRule::kAll);
}

TEST(PolicyRace, LoopLargerThanTheTierIsForTheFrequent) {
  Race race(100);
  for (int round = 0; round < 30; ++round) race.access(0, 120);
  EXPECT_EQ(race.choice(), "frequent");
}

// Each block once more 40 blocks later, and never again.
void use_once_more(Race& race, std::uint64_t first, std::uint64_t count) {
  for (std::uint64_t i = first; i < first + count; ++i) {
    race.access(i, 1);
    race.access(i - 40, 1);
  }
}

TEST(PolicyRace, ReturnsToLruAsSoonAsARivalLoses) {
  Race race(100);
  race.access(0, 12'000);
  ASSERT_NE(race.choice(), "lru");
  use_once_more(race, 100'000, 40 + 25);  // Of which 25 come again.
  EXPECT_EQ(race.choice(), "lru");
}

TEST(PolicyRace, ReturnsToLruWhenTheTierLosesWhatNoSimulationDoesAndStaysThereInDebt) {
  Race race(100);
  for (int round = 0; round < 30; ++round) race.access(0, 120);
  ASSERT_EQ(race.choice(), "frequent");
  const std::uint64_t num_switches = race.race.num_switches();
  race.repeat(200, 400);
  EXPECT_EQ(race.choice(), "lru");
  // The same loop as before wins as much, and the account cannot pay.
  for (int round = 0; round < 30; ++round) race.access(0, 120);
  EXPECT_EQ(race.choice(), "lru");
  EXPECT_EQ(race.race.num_switches(), num_switches + 1);
}

TEST(PolicyRace, TakesPartAgainWhenTheAccountHasRecovered) {
  Race race(100);
  for (int round = 0; round < 30; ++round) race.access(0, 120);
  ASSERT_EQ(race.choice(), "frequent");
  race.repeat(200, 40);
  ASSERT_EQ(race.choice(), "lru");
  for (int round = 0; round < 200; ++round) race.access(0, 120);
  EXPECT_EQ(race.choice(), "frequent");
}

TEST(PolicyRace, SampleOfALargeTierChoosesAsTheWholeWould) {
  Race race(20 * PolicyRace::kMaxShadowSlots);
  const std::uint64_t loop = 24 * PolicyRace::kMaxShadowSlots;
  for (int round = 0; round < 12; ++round) race.access(0, loop);
  EXPECT_EQ(race.choice(), "frequent");
}

TEST(PolicyRace, TierThatFollowsLruKnowsBetterThanASampleWhatLruLoads) {
  PolicyRace race(kAll, 4 * PolicyRace::kMaxShadowSlots);
  // Too long for every simulation of LRU; the tier says that it holds all of it.
  const std::uint64_t loop = 5 * PolicyRace::kMaxShadowSlots;
  for (int round = 0; round < 30; ++round) {
    for (std::uint64_t i = 0; i < loop; ++i) {
      race.offered(hash(i), PolicyRace::Presence::kHeld);
      race.end_offer();
    }
  }
  EXPECT_STREQ(race.current().name, "lru");
  EXPECT_EQ(race.num_switches(), 0U);
}

TEST(PolicyRace, ResizedTierKeepsItsChoice) {
  Race race(100);
  for (int round = 0; round < 30; ++round) race.access(0, 120);
  race.race.resize(80);
  EXPECT_EQ(race.choice(), "frequent");
}

// Of a prompt that is longer than the tier, the first blocks count.
TEST(PolicyRace, AnOfferIsOneOfferHoweverLongItIs) {
  Race race(100);
  for (int turn = 0; turn < 60; ++turn) {
    // LRU loads the 100 first blocks, and the tier does not.
    for (std::uint64_t i = 1250; i-- > 0;) {
      race.race.offered(hash(i), PolicyRace::Presence::kAbsent);
    }
    race.race.end_offer();
  }
  EXPECT_EQ(race.choice(), "lru");
  EXPECT_EQ(race.race.num_switches(), 0U);
}

TEST(PolicyRace, SingleRuleIsNotSimulated) {
  const PolicyRace race({&kRaceLru, 1}, 100);
  EXPECT_FALSE(race.runs());
  EXPECT_STREQ(race.current().name, "lru");
}

}  // namespace
}  // namespace kvferry::cpu_tier
