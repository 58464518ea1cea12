// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/policy/promise_ledger.hpp"

#include "kvferry/base/error.hpp"

#include <gtest/gtest.h>

#include <limits>

namespace kvferry::cpu_tier {
namespace {

constexpr auto kAsked = static_cast<std::size_t>(PromiseLedger::kAskedPerCredit);

PromiseLedger ledger_of(std::uint32_t num_slots, float share = 0.5F) {
  PromiseLedger ledger(share, num_slots);
  ledger.resize(num_slots);
  return ledger;
}

TEST(PromiseLedger, BlocksThatAreAskedForEarnStaysUpToTheShare) {
  PromiseLedger ledger = ledger_of(10, 0.3F);
  ledger.asked(kAsked - 1);
  ledger.promise(1, 1);
  EXPECT_EQ(ledger.max_stays(), 0U);
  ledger.asked(1);
  EXPECT_EQ(ledger.max_stays(), 1U);
  ledger.asked(100 * kAsked);
  EXPECT_EQ(ledger.max_stays(), 3U);
}

TEST(PromiseLedger, NothingIsBelievedBeforeTheFirstPromiseOrWithoutAShare) {
  PromiseLedger unused = ledger_of(10);
  unused.asked(5 * kAsked);
  EXPECT_FALSE(unused.is_used());
  EXPECT_EQ(unused.max_stays(), 0U);
  PromiseLedger off = ledger_of(10, 0);
  off.asked(5 * kAsked);
  off.promise(1, 1);
  EXPECT_EQ(off.max_stays(), 0U);
  EXPECT_EQ(off.room_for_early(0, 0), 0U);
}

TEST(PromiseLedger, HitsThatAreWonAndLostMoveTheAccount) {
  PromiseLedger ledger = ledger_of(100);
  ledger.promise(1, 1);
  ledger.asked(4 * kAsked);
  ledger.won(6);
  EXPECT_EQ(ledger.max_stays(), 10U);
  ledger.lost(25);
  EXPECT_EQ(ledger.max_stays(), 0U);
  ledger.asked(15 * kAsked);
  EXPECT_EQ(ledger.max_stays(), 0U);
  ledger.asked(kAsked);
  EXPECT_EQ(ledger.max_stays(), 1U);
  EXPECT_EQ(ledger.num_won(), 6U);
  EXPECT_EQ(ledger.num_lost(), 25U);
}

TEST(PromiseLedger, ABlockIsMissedForAsManyTurnsAsBlocksStay) {
  PromiseLedger ledger = ledger_of(100);
  ledger.promise(1, 1);
  ledger.left_in_turn(50, 10, 10, 2);
  EXPECT_TRUE(ledger.missed(50, 10));
  EXPECT_TRUE(ledger.missed(50, 11)) << "it is as recent as its last use";
  ledger.left_in_turn(51, 12, 12, 2);
  EXPECT_TRUE(ledger.missed(51, 12));
  ledger.left_in_turn(52, 13, 13, 2);
  EXPECT_FALSE(ledger.missed(50, 13));
  ledger.stored(52);
  EXPECT_FALSE(ledger.missed(52, 13));
  ledger.left_in_turn(53, 14, 14, 0);
  EXPECT_FALSE(ledger.missed(51, 14)) << "nothing stays any more";
  EXPECT_FALSE(ledger.missed(53, 14));
}

TEST(PromiseLedger, WhatLeftEarlyIsMissedForOneTurnoverAndTakesRoom) {
  PromiseLedger ledger = ledger_of(8);
  ledger.begin_use();
  ledger.asked(4 * kAsked);
  EXPECT_EQ(ledger.room_for_early(1, 1), 2U);
  ledger.left_early(60, 5);
  EXPECT_EQ(ledger.room_for_early(1, 1), 1U);
  EXPECT_EQ(ledger.max_stays(), 3U);
  EXPECT_TRUE(ledger.missed(60, 5));
  ledger.left_in_turn(61, 12, 12, 0);
  EXPECT_TRUE(ledger.missed(60, 5));
  ledger.left_in_turn(62, 13, 13, 0);
  EXPECT_FALSE(ledger.missed(60, 13));
  EXPECT_EQ(ledger.max_stays(), 4U);
}

TEST(PromiseLedger, PromisesOfOneKeyAreCounted) {
  PromiseLedger ledger = ledger_of(8);
  ledger.promise(7, 3);
  ledger.promise(7, 5);
  EXPECT_EQ(ledger.depth(7), 5);
  EXPECT_FALSE(ledger.end(7));
  EXPECT_EQ(ledger.num_promised(), 1U);
  EXPECT_TRUE(ledger.end(7));
  EXPECT_FALSE(ledger.end(7));
  EXPECT_EQ(ledger.depth(7), 0);
  EXPECT_FALSE(ledger.any());
}

TEST(PromiseLedger, DepthGrowsWithThePositionAndEnds) {
  EXPECT_EQ(PromiseLedger::depth_of(0), 1);
  EXPECT_EQ(PromiseLedger::depth_of(1), 2);
  EXPECT_EQ(PromiseLedger::depth_of(3), 3);
  EXPECT_EQ(PromiseLedger::depth_of(4), 4);
  EXPECT_EQ(PromiseLedger::depth_of(std::size_t{1} << 40), PromiseLedger::kMaxDepth);
}

TEST(PromiseLedger, AShareOutOfRangeIsRefused) {
  EXPECT_THROW(PromiseLedger(1.5F, 8), ConfigError);
  EXPECT_THROW(PromiseLedger(-0.1F, 8), ConfigError);
  EXPECT_THROW(PromiseLedger(std::numeric_limits<float>::quiet_NaN(), 8), ConfigError);
}

}  // namespace
}  // namespace kvferry::cpu_tier
