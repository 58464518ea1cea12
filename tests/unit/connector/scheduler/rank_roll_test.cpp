// SPDX-License-Identifier: Apache-2.0
#include "rank_roll.hpp"

#include <gtest/gtest.h>

namespace kvferry::connector {
namespace {

constexpr RankId kRankA{0};
constexpr RankId kRankB{1};

TEST(RankRoll, SucceedsOnlyWhenEveryRankHas) {
  RankRoll roll(2);
  EXPECT_TRUE(roll.ended(kRankA, Outcome::kDone));
  EXPECT_FALSE(roll.all_ended());
  EXPECT_FALSE(roll.all_done());
  EXPECT_TRUE(roll.ended(kRankB, Outcome::kDone));
  EXPECT_TRUE(roll.all_done());
  EXPECT_FALSE(roll.any_failed());
}

TEST(RankRoll, OneFailureIsAFailureWhoeverSpeaksLast) {
  RankRoll roll(2);
  EXPECT_TRUE(roll.ended(kRankB, Outcome::kFailed));
  EXPECT_TRUE(roll.ended(kRankA, Outcome::kDone));
  EXPECT_TRUE(roll.all_ended());
  EXPECT_FALSE(roll.all_done());
  EXPECT_TRUE(roll.any_failed());
}

TEST(RankRoll, ACancelledRankIsNeitherSuccessNorFailure) {
  RankRoll roll(2);
  EXPECT_TRUE(roll.ended(kRankA, Outcome::kCancelled));
  EXPECT_TRUE(roll.ended(kRankB, Outcome::kDone));
  EXPECT_FALSE(roll.all_done());
  EXPECT_FALSE(roll.any_failed());
}

// LMCache#4342: exactly one completion per rank.
TEST(RankRoll, RefusesTheSecondWordOfARank) {
  RankRoll roll(2);
  EXPECT_TRUE(roll.gathered(kRankA, 3));
  EXPECT_FALSE(roll.gathered(kRankA, 1));
  EXPECT_TRUE(roll.ended(kRankA, Outcome::kDone));
  EXPECT_FALSE(roll.ended(kRankA, Outcome::kFailed));
  EXPECT_FALSE(roll.any_failed());
  EXPECT_FALSE(roll.all_ended());
}

TEST(RankRoll, KnowsTheLeastAndTheMostThatRanksGathered) {
  RankRoll roll(3);
  EXPECT_TRUE(roll.gathered(kRankA, 3));
  EXPECT_TRUE(roll.gathered(kRankB, 2));
  EXPECT_FALSE(roll.all_gathered());
  EXPECT_TRUE(roll.gathered(RankId(2), 5));
  EXPECT_TRUE(roll.all_gathered());
  EXPECT_EQ(roll.least_gathered(), 2U);
  EXPECT_EQ(roll.most_gathered(), 5U);
}

TEST(RankRoll, AStoreOfWhichARankGatheredNothingHasEndedThere) {
  RankRoll roll(2);
  EXPECT_TRUE(roll.gathered(kRankA, 0));
  EXPECT_TRUE(roll.gathered(kRankB, 4));
  EXPECT_FALSE(roll.all_ended());
  EXPECT_FALSE(roll.ended(kRankA, Outcome::kDone));
  EXPECT_TRUE(roll.ended(kRankB, Outcome::kDone));
  EXPECT_TRUE(roll.all_done());
}

}  // namespace
}  // namespace kvferry::connector
