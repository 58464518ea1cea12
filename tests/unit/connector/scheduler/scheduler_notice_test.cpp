// SPDX-License-Identifier: Apache-2.0
#include "scheduler_fixture.hpp"

namespace kvferry::connector {
namespace {

/// How the engine hears of a load that failed: every rank announces it once, then the scheduler
/// side tells it. With keys 1 to 4 in the tier.
class SchedulerNoticeTest : public SchedulerTest {
 protected:
  SchedulerNoticeTest() {
    register_ranks({});
    fill({1, 2, 3, 4}, 0);
  }

  void begin(std::string_view id) {
    arrive(id, {1, 2, 3, 4, 5, 6});
    ASSERT_EQ(engine_->lookup(id, 0, 25), 16U);
    engine_->on_allocated(id, blocks_of({40, 41, 42, 43}), 16);
  }
  StepPlan send(std::string_view id) {
    begin(id);
    return plan();
  }
  /// A load that has failed on every rank and was not announced yet.
  void fail(std::string_view id) { EXPECT_EQ(fold_ends(send(id), Outcome::kFailed), Ids{}); }
  /// A failed load whose notice is on its way.
  StepPlan notify(std::string_view id) {
    fail(id);
    StepPlan step = plan();
    EXPECT_EQ(notified(step), Ids{std::string(id)});
    return step;
  }
  void expect_rest() {
    EXPECT_TRUE(plan().empty());
    EXPECT_EQ(view().num_loads_in_flight, 0U);
    EXPECT_EQ(view().num_tombstones, 0U);
    EXPECT_EQ(view().tier.num_leased + view().tier.num_dying, 0U);
  }
};

TEST_F(SchedulerNoticeTest, AFailureIsToldOnceWhenEveryRankHasAnnouncedIt) {
  const StepPlan step = send("r");
  EXPECT_EQ(fold({ends(kRankA, step, Outcome::kFailed)}), Ids{});
  EXPECT_TRUE(plan().notices.empty()) << "rank B may still write its blocks";
  EXPECT_EQ(fold({ends(kRankB, step)}), Ids{});
  const StepPlan notice = plan();
  ASSERT_EQ(notified(notice), Ids{"r"});
  EXPECT_EQ(notice.notices[0].transfer, step.loads[0].transfer);
  EXPECT_TRUE(plan().empty()) << "exactly one notice";
  EXPECT_EQ(fold({ends(kRankB, notice)}), Ids{});
  EXPECT_EQ(engine_->lookup("r", 0, 25), 0U) << "the engine does not know yet";
  EXPECT_EQ(fold({ends(kRankA, notice)}), Ids{"r"});
  EXPECT_EQ(stale_, Ids{});
  EXPECT_EQ(view().failed_loads, 1U);
  EXPECT_EQ(view().stale_reports, 0U);
  expect_rest();
}

// vllm#46240: the second report of one transfer asserted in the engine.
TEST_F(SchedulerNoticeTest, ASecondAnnouncementIsCountedAndDropped) {
  const StepPlan notice = notify("r");
  EXPECT_EQ(fold({ends(kRankA, notice)}), Ids{});
  EXPECT_EQ(fold({ends(kRankA, notice)}), Ids{}) << "one rank does not count for two";
  EXPECT_EQ(view().stale_reports, 1U);
  EXPECT_EQ(fold({ends(kRankB, notice)}), Ids{"r"});
  EXPECT_EQ(fold_ends(notice), Ids{});
  EXPECT_EQ(stale_, Ids{});
  EXPECT_EQ(view().stale_reports, 3U);
}

TEST_F(SchedulerNoticeTest, AnAnnouncementOfWhatWasNotNotifiedIsCountedAndDropped) {
  const StepPlan step = send("r");
  StepReport announced = report_of(kRankA);
  announced.announced = {step.loads[0].transfer, TransferId(1), TransferId(4711)};
  EXPECT_EQ(fold({announced}), Ids{});
  EXPECT_EQ(view().stale_reports, 3U);
  EXPECT_EQ(fold_ends(step, Outcome::kFailed), Ids{});
  EXPECT_EQ(fold({announced}), Ids{}) << "it failed, and no plan has said so";
  EXPECT_EQ(view().stale_reports, 6U);
  EXPECT_EQ(fold_ends(plan()), Ids{"r"});
}

TEST_F(SchedulerNoticeTest, AnEndReportedAgainIsNoAnnouncement) {
  const StepPlan step = send("r");
  fold_ends(step, Outcome::kFailed);
  const StepPlan notice = plan();
  EXPECT_EQ(fold_ends(step), Ids{});
  EXPECT_EQ(view().stale_reports, 2U);
  EXPECT_EQ(fold_ends(notice), Ids{"r"});
}

TEST_F(SchedulerNoticeTest, FailuresOfDifferentRequestsTravelTogether) {
  const StepPlan a = send("a");
  const StepPlan b = send("b");
  fold({ends(kRankA, a, Outcome::kFailed), ends(kRankA, b, Outcome::kFailed), ends(kRankB, a),
        ends(kRankB, b)});
  const StepPlan notice = plan();
  EXPECT_EQ(notified(notice), (Ids{"a", "b"}));
  EXPECT_EQ(fold_ends(notice), (Ids{"a", "b"}));
  expect_rest();
}

// The engine counts announcements by id alone: one of each of two notices would make one.
TEST_F(SchedulerNoticeTest, TwoNoticesOfOneIdAreNeverOnTheirWayTogether) {
  const StepPlan first = notify("r");
  engine_->on_finished("r");
  arrive("r", {1, 2, 3, 4});
  engine_->on_allocated("r", blocks_of({50, 51}), 8);  // Without an answer: it fails at once.
  EXPECT_TRUE(plan().empty());
  EXPECT_EQ(fold({ends(kRankA, first)}), Ids{});
  EXPECT_TRUE(plan().empty());
  EXPECT_EQ(fold({ends(kRankB, first)}), Ids{});
  EXPECT_EQ(stale_, Ids{"r"});
  const StepPlan second = plan();
  ASSERT_EQ(notified(second), Ids{"r"});
  EXPECT_NE(second.notices[0].transfer, first.notices[0].transfer);
  EXPECT_EQ(fold_ends(second), Ids{"r"});
  EXPECT_EQ(stale_, Ids{});
  expect_rest();
}

TEST_F(SchedulerNoticeTest, AbortBetweenFailureAndNoticeIsToldOnce) {
  fail("r");
  for (int i = 0; i < 3; ++i) engine_->on_finished("r");
  EXPECT_EQ(view().num_tombstones, 1U);
  const StepPlan notice = plan();
  EXPECT_EQ(notified(notice), Ids{"r"}) << "the engine waits for it to free the blocks";
  EXPECT_TRUE(notice.cancels.empty()) << "no rank copies anything";
  EXPECT_EQ(fold_ends(notice), Ids{"r"});
  EXPECT_EQ(stale_, Ids{});
  expect_rest();
}

TEST_F(SchedulerNoticeTest, AbortWhileTheNoticeIsOnItsWayIsToldOnce) {
  const StepPlan notice = notify("r");
  EXPECT_EQ(fold({ends(kRankA, notice)}), Ids{});
  for (int i = 0; i < 3; ++i) engine_->on_finished("r");
  EXPECT_TRUE(plan().empty());
  EXPECT_EQ(fold({ends(kRankB, notice)}), Ids{"r"});
  EXPECT_EQ(stale_, Ids{});
  expect_rest();
}

TEST_F(SchedulerNoticeTest, AFailureOfAnAbortedLoadIsToldWithItsEnd) {
  const StepPlan step = send("r");
  engine_->on_finished("r");
  EXPECT_EQ(fold_ends(step, Outcome::kFailed), Ids{"r"});
  EXPECT_EQ(num_hit({1, 2, 3, 4}), 0U) << "its bytes are in doubt all the same";
  EXPECT_EQ(notified(plan()), Ids{});
  expect_rest();
}

TEST_F(SchedulerNoticeTest, NobodyHearsOfAFailureWhoseIdWasReusedBeforeItsNotice) {
  fail("r");
  engine_->on_finished("r");
  arrive("r", {9});
  EXPECT_TRUE(plan().empty());
  EXPECT_EQ(view().stale_reports, 1U);
  EXPECT_EQ(view().num_requests, 1U);
  expect_rest();
}

// vllm#43226, vllm#51637: the ranks cannot know that the id is another's by now.
TEST_F(SchedulerNoticeTest, AnAnnouncementIsStaleWhoseIdWasReusedMeanwhile) {
  const StepPlan notice = notify("r");
  engine_->on_finished("r");
  arrive("r", {9});
  EXPECT_EQ(fold({ends(kRankA, notice)}), Ids{});
  EXPECT_EQ(stale_, Ids{}) << "the engine has not counted all ranks either";
  EXPECT_EQ(fold({ends(kRankB, notice)}), Ids{});
  EXPECT_EQ(stale_, Ids{"r"});
  EXPECT_EQ(view().stale_reports, 1U);
  EXPECT_TRUE(engine_->knows("r"));
  expect_rest();
}

// The engine takes announced failures by id before the scheduler side can call them stale: a load
// of the same id must not be under way then.
TEST_F(SchedulerNoticeTest, AReusedIdDoesNotLoadWhileTheNoticeOfItsEarlierLifeIsOnItsWay) {
  const StepPlan step = send("r");
  engine_->reset_cache();  // It fails, and its keys come back.
  fold_ends(step);
  const StepPlan notice = plan();
  ASSERT_EQ(notified(notice), Ids{"r"});
  fill({1, 2, 3, 4}, 0);
  engine_->on_finished("r");
  arrive("r", {1, 2, 3, 4, 5, 6});
  EXPECT_EQ(engine_->lookup("r", 0, 25), 0U);
  EXPECT_EQ(num_hit({1, 2, 3, 4}), 4U) << "it is the id, not the keys";
  EXPECT_EQ(fold({ends(kRankA, notice)}), Ids{});
  EXPECT_EQ(engine_->lookup("r", 0, 25), 0U);
  EXPECT_EQ(fold({ends(kRankB, notice)}), Ids{});
  EXPECT_EQ(stale_, Ids{"r"});
  EXPECT_EQ(engine_->lookup("r", 0, 25), 16U);
  engine_->on_allocated("r", blocks_of({40, 41, 42, 43}), 16);
  EXPECT_EQ(fold_ends(plan()), Ids{"r"});
  EXPECT_EQ(stale_, Ids{});
}

// The ranks may have ended the load before they hear of the reset, which the engine's answer must
// not depend on.
TEST_F(SchedulerNoticeTest, ALoadThatEveryRankEndedBeforeItHeardOfTheResetFails) {
  const StepPlan step = send("r");
  engine_->reset_cache();
  EXPECT_EQ(fold_ends(step, Outcome::kDone), Ids{});
  EXPECT_EQ(view().loaded, 0U);
  EXPECT_EQ(view().failed_loads, 1U);
  EXPECT_EQ(view().tier.num_free, 32U);
  const StepPlan notice = plan();
  EXPECT_EQ(notified(notice), Ids{"r"});
  EXPECT_EQ(fold_ends(notice), Ids{"r"});
  schedule("r", {40, 41, 42, 43, 44, 45}, 0, 24);
  EXPECT_EQ(plan().stores.at(0).blocks.size(), 6U) << "computed anew, it is stored";
}

TEST_F(SchedulerNoticeTest, AResetBehindTheFailureMakesNoSecondNotice) {
  fail("r");
  engine_->reset_cache();
  const StepPlan notice = plan();
  EXPECT_EQ(notified(notice), Ids{"r"});
  EXPECT_TRUE(notice.cancels.empty());
  engine_->reset_cache();
  EXPECT_TRUE(plan().empty());
  EXPECT_EQ(fold_ends(notice), Ids{"r"});
  EXPECT_EQ(view().failed_loads, 1U);
  expect_rest();
}

TEST_F(SchedulerNoticeTest, AResetBehindAnAbortChangesNothingAboutItsEnd) {
  const StepPlan step = send("r");
  engine_->on_finished("r");
  engine_->reset_cache();
  EXPECT_EQ(fold_ends(step), Ids{"r"});
  EXPECT_EQ(view().failed_loads, 0U);
  EXPECT_EQ(view().tier.num_free, 32U);
  EXPECT_EQ(notified(plan()), Ids{});
  expect_rest();
}

TEST_F(SchedulerNoticeTest, ALoadThatWasAbortedAndResetBeforeItsPlanIsToldOnce) {
  begin("r");
  engine_->on_finished("r");
  engine_->reset_cache();
  const StepPlan notice = plan();
  EXPECT_TRUE(notice.loads.empty());
  EXPECT_TRUE(notice.cancels.empty());
  EXPECT_EQ(notified(notice), Ids{"r"});
  EXPECT_EQ(fold_ends(notice), Ids{"r"});
  expect_rest();
}

// vllm#51637: two reports of one rank were counted as one of each.
TEST_F(SchedulerNoticeTest, OneRanksEndsOfAnOldAndANewLoadOfOneIdTellNobodyAnything) {
  const StepPlan old = send("r");
  engine_->on_finished("r");
  const StepPlan fresh = send("r");
  EXPECT_EQ(fold({ends(kRankA, old), ends(kRankA, fresh)}), Ids{});
  EXPECT_EQ(stale_, Ids{});
  EXPECT_EQ(view().num_loads_in_flight, 2U);
  EXPECT_EQ(view().tier.num_leased, 4U);
  EXPECT_EQ(engine_->lookup("r", 0, 25), 0U) << "it still loads";
  EXPECT_EQ(fold({ends(kRankB, old)}), Ids{});
  EXPECT_EQ(view().tier.num_leased, 4U) << "the living load's lease";
  EXPECT_EQ(fold({ends(kRankB, fresh)}), Ids{"r"});
  expect_rest();
}

TEST_F(SchedulerNoticeTest, ItsOldLoadMayEndBehindTheNewOneOfTheSameId) {
  const StepPlan old = send("r");
  engine_->on_finished("r");
  const StepPlan fresh = send("r");
  EXPECT_EQ(fold_ends(fresh), Ids{"r"});
  EXPECT_EQ(view().tier.num_leased, 4U) << "the old load's lease";
  EXPECT_EQ(fold_ends(old, Outcome::kFailed), Ids{});
  EXPECT_EQ(stale_, Ids{});
  EXPECT_TRUE(engine_->knows("r"));
  EXPECT_EQ(view().tier.num_free, 32U) << "the bytes that failed for nobody are in doubt too";
}

}  // namespace
}  // namespace kvferry::connector
