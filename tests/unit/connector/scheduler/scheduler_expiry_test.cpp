// SPDX-License-Identifier: Apache-2.0
#include "scheduler_fixture.hpp"

#include <chrono>

namespace kvferry::connector {
namespace {

using std::chrono::seconds;

/// Loads that have not begun when their time is over (load_timeout).
class SchedulerExpiryTest : public SchedulerTest {
 protected:
  SchedulerExpiryTest() {
    register_ranks({});
    fill({1, 2}, 0);
  }

  /// The plan that has the load of two blocks.
  StepPlan load(const std::string& id) {
    arrive(id, {1, 2});
    EXPECT_EQ(engine_->lookup(id, 0, 9), 8U);
    engine_->on_allocated(id, blocks_of({40, 41}), 8);
    StepPlan step = plan();
    EXPECT_EQ(step.loads.size(), 1U);
    return step;
  }
  /// Steps of a second each, in all of which both ranks say that the load is under way. Returns
  /// what was told to expire.
  std::vector<TransferId> steps(int count, TransferId under_way) {
    std::vector<TransferId> expired;
    for (int i = 0; i < count; ++i) {
      now_ += seconds(1);
      fold({word(kRankA, under_way), word(kRankB, under_way)});
      last_ = plan();
      expired.insert(expired.end(), last_.expiries.begin(), last_.expiries.end());
    }
    return expired;
  }
  [[nodiscard]] StepReport word(RankId rank, TransferId under_way) const {
    StepReport report = report_of(rank);
    report.executed = last_.seq;
    report.oldest_under_way = under_way;
    return report;
  }
  [[nodiscard]] static StepReport end(RankId rank, TransferId transfer, Outcome outcome) {
    StepReport report = report_of(rank);
    report.loads.push_back({transfer, outcome, ""});
    return report;
  }

  StepPlan last_;
};

TEST_F(SchedulerExpiryTest, ALoadExpiresOnceWhenItsTimeIsOver) {
  const TransferId transfer = load("r").loads[0].transfer;
  EXPECT_TRUE(steps(30, transfer).empty()) << "not longer than the time-out";
  EXPECT_EQ(steps(1, transfer), std::vector{transfer});
  EXPECT_TRUE(steps(100, transfer).empty()) << "once";
  EXPECT_TRUE(last_.cancels.empty()) << "what has begun goes on";
}

TEST_F(SchedulerExpiryTest, DroppedByEveryRankItIsAFailedLoadThatIsCountedApart) {
  const TransferId transfer = load("r").loads[0].transfer;
  steps(31, transfer);
  EXPECT_TRUE(
      fold({end(kRankA, transfer, Outcome::kCancelled), end(kRankB, transfer, Outcome::kCancelled)})
          .empty());
  EXPECT_EQ(view().tier.num_leased, 0U);
  const StepPlan notice = plan();
  EXPECT_EQ(notified(notice), Ids{"r"});
  EXPECT_EQ(fold_ends(notice), Ids{"r"});
  EXPECT_EQ(view().expired_loads, 1U);
  EXPECT_EQ(view().failed_loads, 1U);
}

// Ranks that decided for themselves would differ: the engine would be told that it has what a rank
// has not.
TEST_F(SchedulerExpiryTest, DroppedByOneRankItHasFailedOnAll) {
  const TransferId transfer = load("r").loads[0].transfer;
  steps(31, transfer);
  EXPECT_TRUE(fold({end(kRankA, transfer, Outcome::kDone)}).empty());
  EXPECT_EQ(view().tier.num_leased, 2U) << "the other rank may read them still";
  EXPECT_TRUE(fold({end(kRankB, transfer, Outcome::kCancelled)}).empty());
  EXPECT_EQ(notified(plan()), Ids{"r"});
  EXPECT_EQ(view().expired_loads, 1U);
}

TEST_F(SchedulerExpiryTest, DroppedByNoRankItHasSucceeded) {
  const TransferId transfer = load("r").loads[0].transfer;
  steps(31, transfer);
  EXPECT_EQ(fold({end(kRankA, transfer, Outcome::kDone), end(kRankB, transfer, Outcome::kDone)}),
            Ids{"r"});
  EXPECT_EQ(view().expired_loads, 0U);
  EXPECT_EQ(view().failed_loads, 0U);
  EXPECT_EQ(view().loaded, 2U);
}

TEST_F(SchedulerExpiryTest, ItsBlocksAreOfferedAgain) {
  const TransferId transfer = load("r").loads[0].transfer;
  steps(31, transfer);
  fold({end(kRankA, transfer, Outcome::kCancelled), end(kRankB, transfer, Outcome::kCancelled)});
  EXPECT_EQ(num_hit({1, 2}), 2U) << "nothing says that they are bad";
}

TEST_F(SchedulerExpiryTest, OneThatFailsOnARankIsNoExpiry) {
  const TransferId transfer = load("r").loads[0].transfer;
  steps(31, transfer);
  fold({end(kRankA, transfer, Outcome::kFailed), end(kRankB, transfer, Outcome::kCancelled)});
  EXPECT_EQ(num_hit({1, 2}), 0U);
  EXPECT_EQ(view().failed_loads, 1U);
  EXPECT_EQ(view().expired_loads, 0U);
}

TEST_F(SchedulerExpiryTest, OneWhoseRequestWasAbortedIsToldOnceAndNotCounted) {
  const TransferId transfer = load("r").loads[0].transfer;
  steps(31, transfer);
  engine_->on_finished("r");
  EXPECT_EQ(plan().cancels, std::vector{transfer});
  EXPECT_EQ(fold({end(kRankA, transfer, Outcome::kCancelled),
                  end(kRankB, transfer, Outcome::kCancelled)}),
            Ids{"r"});
  EXPECT_EQ(view().expired_loads + view().failed_loads, 0U);
}

TEST_F(SchedulerExpiryTest, OneThatAResetDoomedDoesNotExpire) {
  const TransferId transfer = load("r").loads[0].transfer;
  engine_->reset_cache();
  EXPECT_TRUE(steps(40, transfer).empty());
}

TEST_F(SchedulerExpiryTest, ARestCountsNothing) {
  const TransferId transfer = load("r").loads[0].transfer;
  fold({});
  for (int i = 0; i < 20; ++i) {
    now_ += std::chrono::hours(1);
    last_ = plan();
    EXPECT_TRUE(last_.expiries.empty()) << i;
    fold({word(kRankA, transfer), word(kRankB, transfer)});
  }
}

TEST_F(SchedulerExpiryTest, AStopWithinAStepCountsASixteenth) {
  const TransferId transfer = load("r").loads[0].transfer;
  for (int stop = 0; stop < 16; ++stop) {
    now_ += std::chrono::hours(1);
    fold({word(kRankA, transfer), word(kRankB, transfer)});
    last_ = plan();
    ASSERT_TRUE(last_.expiries.empty()) << stop;
  }
  EXPECT_EQ(steps(1, transfer), std::vector{transfer});
}

TEST_F(SchedulerExpiryTest, StoresDoNotExpire) {
  arrive("writer", {11, 12});
  schedule("writer", {11, 12}, 0, 8);
  const StepPlan step = plan();
  ASSERT_EQ(step.stores.size(), 1U);
  EXPECT_TRUE(steps(1000, step.stores[0].transfer).empty());
  fold_ends(step);
  EXPECT_EQ(num_hit({11, 12}), 2U);
}

}  // namespace
}  // namespace kvferry::connector
