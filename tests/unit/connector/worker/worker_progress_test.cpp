// SPDX-License-Identifier: Apache-2.0
#include "worker_fixture.hpp"

namespace kvferry::connector {
namespace {

/// What a rank says of what is under way, and what becomes of loads that expire.
class WorkerProgressTest : public WorkerTest {
 protected:
  /// One step's report.
  StepReport step(const StepPlan& plan) {
    bind_and_save(plan);
    static_cast<void>(engine_->collect());
    return take_report();
  }
};

TEST_F(WorkerProgressTest, EveryReportSaysTheOldestThatIsUnderWayAndTheLastPlan) {
  start({.in_flight_blocks = 1});
  valve_.hold(Kind::kCopyH2D);
  StepPlan plan = next_plan();
  plan.loads.push_back(load(4, pairs(0, 0, 1)));
  plan.loads.push_back(load(3, pairs(1, 1, 1)));
  StepReport report = step(plan);
  EXPECT_EQ(report.executed, PlanSeq(1));
  EXPECT_EQ(report.oldest_under_way, TransferId(3));
  for (std::uint64_t i = 2; i < 20; ++i) {
    report = step(next_plan());
    EXPECT_EQ(report.executed, PlanSeq(i)) << "in a step that has nothing else to say";
    EXPECT_EQ(report.oldest_under_way, TransferId(3));
  }
  valve_.open_all();
  await([&] {
    report = step(next_plan());
    return report.oldest_under_way == TransferId();
  });
  EXPECT_FALSE(report.loads.empty()) << "the end is told in the report that misses it";
  bind_and_save(next_plan());
  EXPECT_TRUE(engine_->collect().empty());
  EXPECT_TRUE(engine_->take_report().empty()) << "nothing is under way";
}

// With drafts the engine takes the report before the step is saved.
TEST_F(WorkerProgressTest, AStoreThatWaitsToBeGatheredIsUnderWay) {
  StepPlan plan = next_plan();
  plan.stores.push_back(store(9, pairs(0, 0, 1)));
  bind(plan);
  static_cast<void>(engine_->collect());
  const StepReport report = take_report();
  EXPECT_EQ(report.executed, PlanSeq(1));
  EXPECT_EQ(report.oldest_under_way, TransferId(9));
  EXPECT_TRUE(report.gathered.empty());
}

TEST_F(WorkerProgressTest, AnExpiredLoadIsDroppedIfItHasNotBegunAndGoesOnIfItHas) {
  start({.in_flight_blocks = 1});
  write(9, 3);
  StepPlan fill = next_plan();
  fill.stores.push_back(store(1, pairs(9, 0, 1)));
  fill.stores.push_back(store(2, pairs(9, 1, 1)));
  bind_and_save(fill);
  collect_ends(2, 0);
  valve_.hold(Kind::kCopyH2D);
  StepPlan loads = next_plan();
  loads.loads.push_back(load(3, pairs(20, 0, 2)));
  loads.loads.push_back(load(4, pairs(24, 0, 2)));
  bind_and_save(loads);
  await([this] { return valve_.num_arrived(Kind::kCopyH2D) == 1; });
  StepPlan expiry = next_plan();
  expiry.expiries = {TransferId(3), TransferId(4), TransferId(77)};
  bind_and_save(expiry);
  collect_ends(2, 1);
  EXPECT_EQ(report_.loads[0].transfer, TransferId(4));
  EXPECT_EQ(report_.loads[0].outcome, Outcome::kCancelled);
  valve_.open_all();
  collect_ends(2, 2);
  EXPECT_EQ(report_.loads[1].transfer, TransferId(3));
  EXPECT_EQ(report_.loads[1].outcome, Outcome::kDone);
  expect_content(20, 3);
  expect_content(21, 3);
}

// A load that waits behind a slow one is no reason to end the worker; the slow one is.
TEST_F(WorkerProgressTest, TheErrorNamesTheDirectionThatMovesNothing) {
  start({.in_flight_blocks = 1, .transfer_timeout = std::chrono::milliseconds(150)});
  valve_.hold(Kind::kCopyD2H);
  StepPlan plan = next_plan();
  plan.stores.push_back(store(5, pairs(0, 0, 1)));
  plan.loads.push_back(load(6, pairs(10, 10, 1)));
  bind_and_save(plan);
  std::string message;
  await([&] {
    try {
      static_cast<void>(engine_->collect());
      return false;
    } catch (const TimeoutError& error) {
      message = error.what();
      return true;
    }
  });
  EXPECT_NE(message.find("rank 1: store 5 is under way"), std::string::npos) << message;
  EXPECT_NE(
      message.find("its oldest copy to host memory has not ended for 0 s (transfer_timeout_s)"),
      std::string::npos)
      << message;
}

}  // namespace
}  // namespace kvferry::connector
