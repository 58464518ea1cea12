// SPDX-License-Identifier: Apache-2.0
#include "rank_patience.hpp"

#include <gtest/gtest.h>

#include <chrono>

namespace kvferry::connector {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::seconds;

class RankPatienceTest : public ::testing::Test {
 protected:
  static constexpr RankId kRank{0};
  static constexpr RankId kOther{1};
  static constexpr TransferId kTransfer{5};

  void plan() { patience_.on_plan(plan_ = plan_.next()); }
  /// As many steps, one after the other, that take so long each.
  void steps(std::uint64_t count, nanoseconds each) {
    for (std::uint64_t i = 0; i < count; ++i) {
      plan();
      now_ += each;
      patience_.on_output();
    }
  }
  [[nodiscard]] bool lost(RankId rank, const RankPatience::Stamp& sent,
                          TransferId transfer = kTransfer) const {
    return patience_.silent(rank, transfer, sent).has_value();
  }

  RankPatience::Clock::time_point now_;
  PlanSeq plan_;
  RankPatience patience_{seconds(16), [this] { return now_; }, 2};
};

TEST_F(RankPatienceTest, EndsBehindTheTimeoutOfSteps) {
  plan();
  const RankPatience::Stamp sent = patience_.stamp();
  patience_.on_output();
  steps(32, milliseconds(500));
  EXPECT_FALSE(patience_.overdue(sent)) << "not longer than the time-out";
  steps(2, milliseconds(500));
  EXPECT_EQ(patience_.overdue(sent), seconds(17));
}

TEST_F(RankPatienceTest, NoNumberOfStepsIsATimeout) {
  plan();
  const RankPatience::Stamp sent = patience_.stamp();
  patience_.on_output();
  steps(100 * RankPatience::kOutputs, nanoseconds(0));
  EXPECT_FALSE(patience_.overdue(sent));
}

// A process that was stopped within a step, or a machine that slept.
TEST_F(RankPatienceTest, AStepCountsASixteenthAtMost) {
  plan();
  const RankPatience::Stamp sent = patience_.stamp();
  now_ += std::chrono::hours(5);
  patience_.on_output();
  EXPECT_FALSE(patience_.overdue(sent));
  steps(RankPatience::kOutputs - 1, std::chrono::hours(5));
  EXPECT_FALSE(patience_.overdue(sent));
  steps(1, milliseconds(1));
  EXPECT_TRUE(patience_.overdue(sent));
}

// kvferry ended an engine that had rested longer than rank_timeout.
TEST_F(RankPatienceTest, NoRestIsATimeout) {
  plan();
  const RankPatience::Stamp sent = patience_.stamp();
  patience_.on_output();
  for (int rest = 0; rest < 100; ++rest) {
    now_ += std::chrono::hours(1);
    plan();
    patience_.on_output();
  }
  EXPECT_FALSE(patience_.overdue(sent)) << "a hundred rests, each counted as a tenth of a second";
}

TEST_F(RankPatienceTest, APauseWithPlansOutCountsForOneStep) {
  for (int i = 0; i < 40; ++i) plan();  // As many pipeline stages.
  const RankPatience::Stamp sent = patience_.stamp();
  now_ += std::chrono::hours(1);
  for (int i = 0; i < 40; ++i) patience_.on_output();
  EXPECT_FALSE(patience_.overdue(sent));
}

TEST_F(RankPatienceTest, ARankThatVouchesForATransferIsNeverLost) {
  plan();
  const RankPatience::Stamp sent = patience_.stamp();
  patience_.on_output();
  for (int i = 0; i < 1000; ++i) {
    steps(1, seconds(1));
    patience_.hear(kRank, plan_, kTransfer);
    ASSERT_FALSE(lost(kRank, sent));
  }
  EXPECT_TRUE(lost(kOther, sent)) << "nobody speaks for it";
}

TEST_F(RankPatienceTest, ARankThatFallsSilentHasItsTimeFromItsLastWordOn) {
  plan();
  const RankPatience::Stamp sent = patience_.stamp();
  patience_.on_output();
  steps(100, seconds(1));
  patience_.hear(kRank, plan_, TransferId(3));
  steps(16, seconds(1));
  EXPECT_FALSE(lost(kRank, sent));
  steps(1, seconds(1));
  EXPECT_EQ(patience_.silent(kRank, kTransfer, sent), seconds(17));
}

TEST_F(RankPatienceTest, ARankThatHasForgottenATransferIsLostHoweverMuchItTalks) {
  plan();
  const RankPatience::Stamp sent = patience_.stamp();
  patience_.on_output();
  for (int i = 0; i < 16; ++i) {
    steps(1, seconds(1));
    patience_.hear(kRank, plan_, TransferId(6));
    patience_.hear(kOther, plan_, TransferId());
    ASSERT_FALSE(lost(kRank, sent) || lost(kOther, sent));
  }
  steps(1, seconds(1));
  EXPECT_TRUE(lost(kRank, sent)) << "the oldest that it has is younger";
  EXPECT_TRUE(lost(kOther, sent)) << "it has nothing under way";
}

// More plans out than a rank had to be silent for (pipeline stages).
TEST_F(RankPatienceTest, ARankThatHasNotComeToAPlanYetIsAlive) {
  steps(3, seconds(0));
  patience_.hear(kRank, plan_, TransferId());
  PlanSeq executed = plan_;
  for (int i = 0; i < 40; ++i) plan();
  const RankPatience::Stamp sent = patience_.stamp();
  for (int i = 0; i < 40; ++i) {
    now_ += seconds(1);
    patience_.on_output();
    patience_.hear(kRank, executed = executed.next(), TransferId(1));
    plan();
    ASSERT_FALSE(lost(kRank, sent)) << i;
  }
}

TEST_F(RankPatienceTest, TheSameWordOnceMoreIsNoSignOfLife) {
  plan();
  const RankPatience::Stamp sent = patience_.stamp();
  patience_.on_output();
  patience_.hear(kRank, plan_, kTransfer);
  const PlanSeq executed = plan_;
  for (int i = 0; i < 17; ++i) {
    steps(1, seconds(1));
    patience_.hear(kRank, executed, kTransfer);
  }
  EXPECT_TRUE(lost(kRank, sent));
}

TEST_F(RankPatienceTest, OutputsThatNoPlanWasMadeForCountNoTime) {
  plan();
  const RankPatience::Stamp sent = patience_.stamp();
  for (int i = 0; i < 100; ++i) {
    now_ += seconds(1);
    patience_.on_output();
  }
  EXPECT_FALSE(patience_.overdue(sent));
}

TEST_F(RankPatienceTest, ReadsTheMonotonicClockByDefault) {
  RankPatience patience(nanoseconds(16), {}, 1);
  patience.on_plan(PlanSeq(1));
  const RankPatience::Stamp sent = patience.stamp();
  const auto begin = std::chrono::steady_clock::now();
  for (std::uint64_t i = 2; !patience.overdue(sent); ++i) {
    ASSERT_LT(std::chrono::steady_clock::now() - begin, std::chrono::minutes(1));
    patience.on_output();
    patience.on_plan(PlanSeq(i));
  }
}

}  // namespace
}  // namespace kvferry::connector
