// SPDX-License-Identifier: Apache-2.0
#include "kvferry/base/error.hpp"

#include "worker_fixture.hpp"

namespace kvferry::connector {
namespace {

using Ids = std::vector<std::string>;

class WorkerLoadTest : public WorkerTest {
 protected:
  /// Slots 0 to 7 get versions 1 to 8.
  void fill_slots() {
    for (std::uint8_t i = 0; i < 8; ++i) write(i, i + 1);
    StepPlan plan = next_plan();
    plan.stores.push_back(store(900, pairs(0, 0, 8)));
    bind_and_save(plan);
    collect_ends(1, 0);
    report_.stores.clear();
  }
  void cancel(std::uint64_t transfer, CancelKind kind) {
    StepPlan plan = next_plan();
    plan.cancels.push_back({TransferId(transfer), kind});
    bind_and_save(plan);
  }
  void begin_load(std::uint64_t transfer, const std::string& id,
                  const std::vector<BlockSlot>& blocks) {
    StepPlan plan = next_plan();
    plan.loads.push_back(load(transfer, id, blocks));
    bind_and_save(plan);
  }
};

TEST_F(WorkerLoadTest, EndsOnceWithItsBytesInPlace) {
  fill_slots();
  begin_load(1, "r", {{BlockId(20), SlotId(5)}, {BlockId(11), SlotId(2)}});
  collect_ends(0, 1);
  EXPECT_EQ(ended_.ended, Ids{"r"});
  EXPECT_EQ(ended_.failed, Ids{});
  EXPECT_EQ(report_.loads[0].outcome, EndedAs::kDone);
  expect_content(20, 6);
  expect_content(11, 3);
}

TEST_F(WorkerLoadTest, ALoadIntoABlockThatWasJustGatheredDoesNotOvertakeTheGather) {
  fill_slots();
  valve_.hold(Kind::kCopyD2H);
  write(9, 50);
  StepPlan plan = next_plan();
  plan.stores.push_back(store(1, pairs(9, 30, 1)));
  bind_and_save(plan);
  begin_load(2, "r", pairs(9, 0, 1));
  collect_ends(0, 1);
  expect_content(9, 1);
  valve_.open_all();
  collect_ends(1, 1);
  begin_load(3, "check", pairs(10, 30, 1));
  collect_ends(1, 2);
  expect_content(10, 50);
}

// A rank with nothing to copy reports it all the same: the engine counts ranks.
TEST_F(WorkerLoadTest, AnEmptyLoadIsReportedAtOnce) {
  begin_load(1, "r", {});
  collect();
  EXPECT_EQ(ended_.ended, Ids{"r"});
  EXPECT_EQ(ended_.failed, Ids{"r"});
  ASSERT_EQ(report_.loads.size(), 1U);
  EXPECT_EQ(report_.loads[0].outcome, EndedAs::kCancelled);
}

TEST_F(WorkerLoadTest, ADoomedLoadIsReportedAtOnceAsFailedAndCopiesNothing) {
  StepPlan plan = next_plan();
  plan.loads.push_back(load(1, "r", pairs(3, 3, 2)));
  plan.loads[0].doomed = true;
  bind_and_save(plan);
  collect();
  EXPECT_EQ(ended_.ended, Ids{"r"});
  EXPECT_EQ(ended_.failed, Ids{"r"});
  ASSERT_EQ(report_.loads.size(), 1U);
  EXPECT_EQ(report_.loads[0].outcome, EndedAs::kFailed);
  EXPECT_EQ(engine_->stats().loaded_bytes, 0U);
}

// LMCache#5032, dynamo#15079.
TEST_F(WorkerLoadTest, AFailedCopyFailsItsLoadAndNoOther) {
  fill_slots();
  valve_.fail_nth(Kind::kCopyH2D, 1);
  begin_load(1, "bad", pairs(20, 0, 1));
  collect_ends(0, 1);
  begin_load(2, "good", pairs(21, 1, 1));
  collect_ends(0, 2);
  EXPECT_EQ(ended_.ended, (Ids{"bad", "good"}));
  EXPECT_EQ(ended_.failed, Ids{"bad"});
  EXPECT_EQ(report_.loads[0].outcome, EndedAs::kFailed);
  EXPECT_FALSE(report_.loads[0].reason.empty());
  expect_content(21, 2);
}

TEST_F(WorkerLoadTest, AbortDropsWhatIsQueuedAndWaitsForWhatRuns) {
  start({.in_flight_blocks = 1});
  fill_slots();
  valve_.hold(Kind::kCopyH2D);
  begin_load(1, "r", pairs(20, 0, 4));
  await([this] { return valve_.num_arrived(Kind::kCopyH2D) == 1; });
  cancel(1, CancelKind::kAbort);
  cancel(1, CancelKind::kAbort);
  collect();
  EXPECT_TRUE(ended_.ended.empty()) << "a copy still writes into the request's blocks";
  valve_.open_all();
  collect_ends(0, 1);
  EXPECT_EQ(ended_.failed, Ids{"r"});
  EXPECT_EQ(report_.loads[0].outcome, EndedAs::kCancelled);
  EXPECT_EQ(valve_.num_arrived(Kind::kCopyH2D), 1U);
}

TEST_F(WorkerLoadTest, ADoomedLoadFailsEvenIfAllItsBytesArrive) {
  fill_slots();
  valve_.hold(Kind::kCopyH2D);
  begin_load(1, "r", pairs(20, 0, 1));
  await([this] { return valve_.num_arrived(Kind::kCopyH2D) == 1; });
  cancel(1, CancelKind::kDoom);
  valve_.open_all();
  collect_ends(0, 1);
  EXPECT_EQ(ended_.failed, Ids{"r"});
  EXPECT_EQ(report_.loads[0].outcome, EndedAs::kFailed);
  EXPECT_NE(report_.loads[0].reason.find("reset"), std::string::npos);
}

TEST_F(WorkerLoadTest, ACancelThatComesTooLateOrForNothingIsIgnored) {
  fill_slots();
  begin_load(1, "r", pairs(20, 0, 1));
  collect_ends(0, 1);
  cancel(1, CancelKind::kAbort);
  cancel(1, CancelKind::kDoom);
  cancel(77, CancelKind::kDoom);
  collect_ends(0, 1);
  EXPECT_EQ(ended_.failed, Ids{});
}

}  // namespace
}  // namespace kvferry::connector
