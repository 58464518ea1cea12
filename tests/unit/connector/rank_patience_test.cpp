// SPDX-License-Identifier: Apache-2.0
#include "rank_patience.hpp"

#include <gtest/gtest.h>

#include <chrono>

namespace kvferry::connector {
namespace {

using std::chrono::seconds;

class RankPatienceTest : public ::testing::Test {
 protected:
  void make_plans(std::uint64_t count) {
    for (std::uint64_t i = 0; i < count; ++i) patience_.on_plan();
  }

  RankPatience::Clock::time_point now_;
  RankPatience patience_{seconds(10), [this] { return now_; }};
};

TEST_F(RankPatienceTest, EndsBehindTheTimeoutAndAsManyPlans) {
  make_plans(1);
  const RankPatience::Stamp sent = patience_.stamp();
  now_ += seconds(11);
  make_plans(RankPatience::kPlans - 1);
  EXPECT_FALSE(patience_.overdue(sent));
  make_plans(1);
  EXPECT_EQ(patience_.overdue(sent), seconds(11));
}

TEST_F(RankPatienceTest, NoNumberOfPlansIsATimeout) {
  make_plans(1);
  const RankPatience::Stamp sent = patience_.stamp();
  now_ += seconds(10);
  make_plans(100 * RankPatience::kPlans);
  EXPECT_FALSE(patience_.overdue(sent));
  now_ += std::chrono::nanoseconds(1);
  EXPECT_FALSE(patience_.overdue(sent)) << "nothing is asked between two plans";
  make_plans(1);
  EXPECT_TRUE(patience_.overdue(sent));
}

TEST_F(RankPatienceTest, NoRestIsATimeout) {
  make_plans(1);
  const RankPatience::Stamp sent = patience_.stamp();
  now_ += std::chrono::hours(1);
  make_plans(1);
  EXPECT_FALSE(patience_.overdue(sent));
}

TEST_F(RankPatienceTest, ReadsTheMonotonicClockByDefault) {
  RankPatience patience(seconds(10), {});
  const auto before = RankPatience::Clock::now();
  patience.on_plan();
  EXPECT_GE(patience.stamp().at, before);
  EXPECT_LE(patience.stamp().at, RankPatience::Clock::now());
}

}  // namespace
}  // namespace kvferry::connector
