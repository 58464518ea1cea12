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
  void cancel(std::uint64_t transfer) {
    StepPlan plan = next_plan();
    plan.cancels.push_back(TransferId(transfer));
    bind_and_save(plan);
  }
  void begin_load(std::uint64_t transfer, const std::vector<BlockSlot>& blocks) {
    StepPlan plan = next_plan();
    plan.loads.push_back(load(transfer, blocks));
    bind_and_save(plan);
  }
  /// Version 50 of it goes to slot 30. The gather waits in the compute stream.
  void store_block_9_but_hold_its_gather() {
    start({.compute = Setup::Compute::kThread});
    fill_slots();
    write(9, 50);
    valve_.hold(Kind::kGather);
    const std::uint64_t num_gathers = valve_.num_arrived(Kind::kGather);
    StepPlan plan = next_plan();
    plan.stores.push_back(store(1, pairs(9, 30, 1)));
    bind_and_save(plan);
    await([&] { return valve_.num_arrived(Kind::kGather) > num_gathers; });
  }
  void open_the_gather_before_any_load() {
    // Time enough for a copy that does not wait; one that does is not hurried by it.
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_EQ(valve_.num_arrived(Kind::kCopyH2D), 0U);
    valve_.open_all();
  }
  /// After a load of slot 0 into it.
  void expect_block_9_stored_and_then_loaded() {
    collect_ends(1, 1);
    expect_content(9, 1);
    begin_load(3, pairs(10, 30, 1));
    collect_ends(1, 2);
    expect_content(10, 50);
  }
};

TEST_F(WorkerLoadTest, EndsOnceWithItsBytesInPlace) {
  fill_slots();
  begin_load(1, {{BlockId(20), SlotId(5)}, {BlockId(11), SlotId(2)}});
  collect_ends(0, 1);
  EXPECT_EQ(report_.loads[0].transfer, TransferId(1));
  EXPECT_EQ(report_.loads[0].outcome, Outcome::kDone);
  EXPECT_EQ(announced_, Ids{}) << "the scheduler side tells of what succeeded";
  expect_content(20, 6);
  expect_content(11, 3);
}

TEST_F(WorkerLoadTest, TimingsOfWhatSucceededAreTakenOnce) {
  start({.in_flight_blocks = 1});
  fill_slots();
  ASSERT_EQ(engine_->take_timings().size(), 1U) << "the store's";
  valve_.fail_nth(Kind::kCopyH2D, 1);
  begin_load(1, pairs(10, 0, 1));
  collect_ends(0, 1);
  EXPECT_TRUE(engine_->take_timings().empty()) << "of a load that failed";
  valve_.hold(Kind::kCopyH2D);
  begin_load(2, pairs(11, 1, 1));
  begin_load(3, pairs(12, 2, 1));
  constexpr auto kHeld = std::chrono::milliseconds(10);
  std::this_thread::sleep_for(kHeld);
  valve_.open_all();
  collect_ends(0, 3);
  const std::vector<TransferTiming> timings = engine_->take_timings();
  ASSERT_EQ(timings.size(), 2U);
  for (const TransferTiming& timing : timings) {
    EXPECT_EQ(timing.kind, transfer::TransferKind::kLoad);
    EXPECT_GT(timing.device_time.count(), 0);
  }
  EXPECT_GE(timings[1].queue_time, kHeld) << "it waited for the link";
  EXPECT_TRUE(engine_->take_timings().empty());
}

// The new bytes would be stored under the old hash.
TEST_F(WorkerLoadTest, ALoadWaitsForTheGathersBeforeItInTheComputeStream) {
  store_block_9_but_hold_its_gather();
  begin_load(2, pairs(9, 0, 1));
  open_the_gather_before_any_load();
  expect_block_9_stored_and_then_loaded();
}

TEST_F(WorkerLoadTest, ALoadOnAnotherComputeStreamComesAfterTheGathersOnTheOldOne) {
  store_block_9_but_hold_its_gather();
  StepPlan next = next_plan();
  next.loads.push_back(load(2, pairs(9, 0, 1)));
  std::thread engine(
      [&, bytes = encode(next)] { engine_->bind(std::as_bytes(std::span(bytes)), 1); });
  open_the_gather_before_any_load();
  engine.join();
  expect_block_9_stored_and_then_loaded();
}

TEST_F(WorkerLoadTest, ALoadIntoABlockThatWasJustGatheredDoesNotOvertakeTheGather) {
  fill_slots();
  valve_.hold(Kind::kCopyD2H);
  write(9, 50);
  StepPlan plan = next_plan();
  plan.stores.push_back(store(1, pairs(9, 30, 1)));
  bind_and_save(plan);
  begin_load(2, pairs(9, 0, 1));
  collect_ends(0, 1);
  expect_content(9, 1);
  valve_.open_all();
  collect_ends(1, 1);
  begin_load(3, pairs(10, 30, 1));
  collect_ends(1, 2);
  expect_content(10, 50);
}

// A rank with nothing to copy reports it all the same: success needs every rank's word.
TEST_F(WorkerLoadTest, AnEmptyLoadIsReportedAtOnce) {
  begin_load(1, {});
  collect();
  ASSERT_EQ(report_.loads.size(), 1U);
  EXPECT_EQ(report_.loads[0].outcome, Outcome::kDone);
  EXPECT_EQ(engine_->stats().loaded_bytes, 0U);
}

// LMCache#5032, dynamo#15079.
TEST_F(WorkerLoadTest, AFailedCopyFailsItsLoadAndNoOther) {
  fill_slots();
  valve_.fail_nth(Kind::kCopyH2D, 1);
  begin_load(1, pairs(20, 0, 1));
  collect_ends(0, 1);
  begin_load(2, pairs(21, 1, 1));
  collect_ends(0, 2);
  EXPECT_EQ(report_.loads[0].transfer, TransferId(1));
  EXPECT_EQ(report_.loads[0].outcome, Outcome::kFailed);
  EXPECT_FALSE(report_.loads[0].reason.empty());
  EXPECT_EQ(report_.loads[1].outcome, Outcome::kDone);
  EXPECT_EQ(announced_, Ids{}) << "only the scheduler side knows whether anybody waits";
  expect_content(21, 2);
}

TEST_F(WorkerLoadTest, CancelDropsWhatIsQueuedAndWaitsForWhatRuns) {
  start({.in_flight_blocks = 1});
  fill_slots();
  valve_.hold(Kind::kCopyH2D);
  begin_load(1, pairs(20, 0, 4));
  await([this] { return valve_.num_arrived(Kind::kCopyH2D) == 1; });
  cancel(1);
  cancel(1);
  collect();
  EXPECT_TRUE(report_.loads.empty()) << "a copy still writes into the request's blocks";
  valve_.open_all();
  collect_ends(0, 1);
  EXPECT_EQ(report_.loads[0].outcome, Outcome::kCancelled);
  EXPECT_EQ(valve_.num_arrived(Kind::kCopyH2D), 1U);
}

TEST_F(WorkerLoadTest, ACancelThatComesTooLateOrForNothingIsIgnored) {
  fill_slots();
  begin_load(1, pairs(20, 0, 1));
  collect_ends(0, 1);
  cancel(1);
  cancel(77);
  collect_ends(0, 1);
  EXPECT_EQ(report_.loads[0].outcome, Outcome::kDone);
}

TEST_F(WorkerLoadTest, ANoticeIsAnnouncedOnceAndConfirmedInTheSameReport) {
  StepPlan plan = next_plan();
  plan.notices = {{TransferId(7), "a"}, {TransferId(9), "b"}};
  bind_and_save(plan);
  EXPECT_EQ(engine_->collect(), (Ids{"a", "b"}));
  EXPECT_EQ(take_report().announced, (std::vector<TransferId>{TransferId(7), TransferId(9)}));
  EXPECT_EQ(engine_->collect(), Ids{});
  EXPECT_TRUE(engine_->take_report().empty());
}

// The engine hears of a failure in the step whose report confirms it, never later.
TEST_F(WorkerLoadTest, ANoticeIsNotConfirmedBeforeItIsAnnounced) {
  bind_and_save(next_plan());
  static_cast<void>(take_report());
  StepPlan plan = next_plan();
  plan.notices = {{TransferId(7), "a"}};
  bind(plan);
  const StepReport before = take_report();
  EXPECT_TRUE(before.announced.empty());
  EXPECT_EQ(before.oldest_under_way, TransferId(7));
  bind_and_save(next_plan());  // Two steps left out their collect().
  EXPECT_EQ(engine_->collect(), Ids{"a"});
  EXPECT_EQ(take_report().announced, std::vector<TransferId>{TransferId(7)});
}

TEST_F(WorkerLoadTest, AnAnnouncementDoesNotWaitForTheTransfersOfTheSameStep) {
  fill_slots();
  valve_.hold(Kind::kCopyH2D);
  StepPlan plan = next_plan();
  plan.loads.push_back(load(1, pairs(20, 0, 1)));
  plan.notices = {{TransferId(7), "a"}};
  bind_and_save(plan);
  collect();
  EXPECT_EQ(announced_, Ids{"a"});
  EXPECT_TRUE(report_.loads.empty());
  valve_.open_all();
  collect_ends(0, 1);
  EXPECT_EQ(announced_, Ids{"a"});
  EXPECT_EQ(report_.announced, std::vector<TransferId>{TransferId(7)});
}

}  // namespace
}  // namespace kvferry::connector
