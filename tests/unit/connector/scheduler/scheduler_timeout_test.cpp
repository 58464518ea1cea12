// SPDX-License-Identifier: Apache-2.0
#include "kvferry/base/error.hpp"

#include "rank_patience.hpp"
#include "scheduler_fixture.hpp"

#include <chrono>

namespace kvferry::connector {
namespace {

using std::chrono::seconds;

/// A rank that keeps silent.
class SchedulerTimeoutTest : public SchedulerTest {
 protected:
  SchedulerTimeoutTest() { register_ranks({}); }

  /// A store of `num_blocks` keys from `key` on, out of blocks of the same numbers.
  StepPlan store(std::uint32_t key, std::uint32_t num_blocks) {
    const std::string id = "store " + std::to_string(key);
    std::vector<std::uint64_t> keys;
    std::vector<std::uint32_t> table;
    for (std::uint32_t i = 0; i < num_blocks; ++i) {
      keys.push_back(key + i);
      table.push_back(key + i);
    }
    arrive(id, keys);
    schedule(id, table, 0, num_blocks * kBlockTokens);
    StepPlan step = plan();
    EXPECT_EQ(planned_blocks(step), table);
    return step;
  }
  /// The engine steps on for so long, and no rank says anything. Returns the last step's plan.
  PlanSeq pass(seconds time) {
    // Each shorter than the sixteenth of the time-out that counts of a step.
    constexpr int kSteps = 20;
    PlanSeq last;
    for (int i = 0; i < kSteps; ++i) {
      last = plan().seq;
      now_ += std::chrono::nanoseconds(time) / kSteps;
      fold({});
    }
    return last;
  }
  /// The rank says that it has executed the last plan, and what it has under way.
  [[nodiscard]] StepReport word(RankId rank, const StepPlan& last, TransferId oldest) const {
    StepReport report = report_of(rank);
    report.executed = last.seq;
    report.oldest_under_way = oldest;
    return report;
  }
  /// The message of the TimeoutError that the next plan gives.
  std::string complaint() {
    try {
      static_cast<void>(engine_->finish_plan());
    } catch (const TimeoutError& error) {
      return error.what();
    }
    ADD_FAILURE() << "no TimeoutError";
    return {};
  }
  void expect_complaint(const std::vector<std::string>& parts) {
    const std::string message = complaint();
    for (const std::string& part : parts) {
      EXPECT_NE(message.find(part), std::string::npos) << part << " is not in: " << message;
    }
  }
  static std::string number(TransferId transfer) { return std::to_string(transfer.value()); }
};

TEST_F(SchedulerTimeoutTest, ARankThatIsSilentAboutAStoreIsNamedWithIt) {
  const StepPlan step = store(10, 2);
  fold({ends(kRankA, step)});
  pass(seconds(61));
  expect_complaint({"rank 1 of 2 ", "store " + number(step.stores[0].transfer) + " of owner",
                    to_string(step.stores[0].owner), "for 61 s", "rank_timeout", "2 slots",
                    "that worker's own error"});
}

TEST_F(SchedulerTimeoutTest, TheOtherRankIsNamedIfItIsTheSilentOne) {
  const StepPlan step = store(10, 2);
  fold({ends(kRankB, step)});
  pass(seconds(61));
  expect_complaint({"rank 0 of 2 "});
}

TEST_F(SchedulerTimeoutTest, AllSilentRanksAreNamed) {
  static_cast<void>(store(10, 2));
  pass(seconds(61));
  expect_complaint({"rank 0, 1 of 2 "});
}

TEST_F(SchedulerTimeoutTest, TheRanksThatOweDifferentTransfersAreAllNamed) {
  fill({1, 2}, 0);
  const StepPlan first = store(10, 2);
  const StepPlan second = store(20, 3);
  arrive("asker", {1, 2});
  ASSERT_EQ(engine_->lookup("asker", 0, 9), 8U);
  engine_->on_allocated("asker", blocks_of({40, 41}), 8);
  const StepPlan load = plan();
  fold({ends(kRankB, first), ends(kRankA, second), ends(kRankA, load)});
  pass(seconds(61));
  expect_complaint({"rank 0, 1 of 2 ", "store " + number(first.stores[0].transfer), "5 slots"});
  fold({ends(kRankA, first), ends(kRankB, second)});
  expect_complaint({"rank 1 of 2 ", "load " + number(load.loads[0].transfer)});
  EXPECT_EQ(fold({ends(kRankB, load)}), Ids{"asker"});
}

TEST_F(SchedulerTimeoutTest, ARankThatGatheredAndThenKeptSilentIsLost) {
  const StepPlan step = store(10, 2);
  StepReport gathered = report_of(kRankB);
  gathered.gathered.push_back({step.stores[0].transfer, 2});
  fold({ends(kRankA, step), gathered});
  pass(seconds(61));
  expect_complaint({"rank 1 of 2 ", "store "});
}

TEST_F(SchedulerTimeoutTest, ARankThatIsSilentAboutALoadIsNamedWithItAndItsRequest) {
  fill({1, 2}, 0);
  arrive("asker", {1, 2});
  ASSERT_EQ(engine_->lookup("asker", 0, 9), 8U);
  engine_->on_allocated("asker", blocks_of({40, 41}), 8);
  const StepPlan step = plan();
  fold({ends(kRankA, step)});
  pass(seconds(61));
  expect_complaint(
      {"rank 1 of 2 ", "load " + number(step.loads[0].transfer) + " of request asker", "61 s"});
  EXPECT_EQ(view().tier.num_leased, 2U) << "a lost rank may still read them";
  EXPECT_EQ(view().tier.num_quarantined, 0U) << "nobody writes them";
}

TEST_F(SchedulerTimeoutTest, ARankThatDoesNotAnnounceAFailureIsNamedWithIt) {
  arrive("asker", {1, 2});
  engine_->on_allocated("asker", blocks_of({40, 41}), 8);
  const StepPlan notice = plan();
  ASSERT_EQ(notified(notice), Ids{"asker"});
  fold({ends(kRankB, notice)});
  pass(seconds(61));
  expect_complaint({"rank 0 of 2 ", "of request asker"});
  EXPECT_EQ(fold({ends(kRankA, notice)}), Ids{"asker"});
}

TEST_F(SchedulerTimeoutTest, AFailureIsTimedFromItsNoticeNotFromItsLoad) {
  fill({1, 2}, 0);
  arrive("asker", {1, 2});
  ASSERT_EQ(engine_->lookup("asker", 0, 9), 8U);
  engine_->on_allocated("asker", blocks_of({40, 41}), 8);
  const StepPlan step = plan();
  pass(seconds(59));
  fold_ends(step, Outcome::kFailed);
  const StepPlan notice = plan();
  ASSERT_EQ(notified(notice), Ids{"asker"});
  pass(seconds(59));
  EXPECT_EQ(fold_ends(notice), Ids{"asker"});
  pass(seconds(61));
  EXPECT_TRUE(plan().empty());
}

// A rank is asked about what it was sent, and an idle engine sends nothing.
TEST_F(SchedulerTimeoutTest, AnEngineThatMadeNoPlansForAnHourFlagsNobody) {
  const StepPlan step = store(10, 2);
  now_ += std::chrono::hours(1);
  EXPECT_TRUE(plan().empty());
  fold_ends(step);
  EXPECT_EQ(num_hit({10, 11}), 2U);
  pass(seconds(61));
  EXPECT_TRUE(plan().empty());
}

TEST_F(SchedulerTimeoutTest, ManyPlansWithinNoTimeFlagNobody) {
  const StepPlan step = store(10, 2);
  for (int i = 0; i < 1000; ++i) {
    static_cast<void>(plan());
    fold({});
  }
  pass(kRankTimeout);
  EXPECT_TRUE(plan().empty()) << "not longer than the time-out";
  fold_ends(step);
  EXPECT_EQ(num_hit({10, 11}), 2U);
}

TEST_F(SchedulerTimeoutTest, WhatTheLostRankMayWriteIsInQuarantineUntilItEndsItAfterAll) {
  const StepPlan first = store(10, 2);
  const StepPlan other = store(30, 4);
  pass(seconds(30));
  const StepPlan second = store(20, 3);
  fold({ends(kRankA, first), ends(kRankB, second), ends(kRankA, other)});
  pass(seconds(31));
  expect_complaint({"rank 1 of 2 ", "6 slots"});
  EXPECT_EQ(view().tier.num_quarantined, 6U);
  EXPECT_EQ(view().tier.num_writable, 3U) << "the rank has ended this one";
  EXPECT_EQ(view().tier.num_free, 23U);
  EXPECT_TRUE(view().tier.conserved());
  fold({ends(kRankB, first)});
  EXPECT_EQ(view().tier.num_quarantined, 4U);
  EXPECT_EQ(view().tier.num_free, 25U);
  fold({ends(kRankB, other, Outcome::kFailed), ends(kRankA, second)});
  EXPECT_EQ(view().tier.num_quarantined, 0U);
  EXPECT_EQ(view().tier.num_free, 29U);
  EXPECT_EQ(view().num_stores_in_flight, 0U);
  EXPECT_EQ(num_hit({10, 11}), 0U) << "it was given up before every rank had stored it";
  EXPECT_EQ(num_hit({20, 21, 22}), 3U);
  EXPECT_EQ(view().stored, 3U);
}

TEST_F(SchedulerTimeoutTest, QuarantineHoldsWhatTheRanksTookAndNoMore) {
  const StepPlan step = store(10, 5);
  StepReport of_a = report_of(kRankA);
  of_a.gathered.push_back({step.stores[0].transfer, 3});
  of_a.stores.push_back({step.stores[0].transfer, Outcome::kDone, ""});
  StepReport of_b = report_of(kRankB);
  of_b.gathered.push_back({step.stores[0].transfer, 2});
  fold({of_a, of_b});
  pass(seconds(61));
  expect_complaint({"rank 1 of 2 ", "3 slots"});
  EXPECT_EQ(view().tier.num_quarantined, 3U);
  StepReport late = report_of(kRankB);
  late.stores.push_back({step.stores[0].transfer, Outcome::kCancelled, ""});
  fold({late});
  EXPECT_EQ(view().tier.num_free, 32U);
}

TEST_F(SchedulerTimeoutTest, AStoreThatAResetAbortedIsQuarantinedToo) {
  const StepPlan step = store(10, 2);
  engine_->reset_cache();
  fold({ends(kRankA, step, Outcome::kCancelled)});
  pass(seconds(61));
  expect_complaint({"rank 1 of 2 ", "2 slots"});
  engine_->reset_cache();
  EXPECT_EQ(view().tier.num_quarantined, 2U);
  fold({ends(kRankB, step, Outcome::kCancelled)});
  EXPECT_EQ(view().tier.num_free, 32U);
}

// LMCache#5263, #4517: memory in doubt was given out again.
TEST_F(SchedulerTimeoutTest, QuarantinedSlotsAreNotGivenOut) {
  restart();
  register_ranks({.num_slots = 6});
  const StepPlan first = store(10, 2);
  pass(seconds(30));
  const StepPlan second = store(20, 3);
  pass(seconds(31));
  EXPECT_NE(complaint().find("5 slots"), std::string::npos);
  fold_ends(first);
  // The second is not overdue by itself, so that there are plans again.
  arrive("r", {31, 32, 33, 34});
  schedule("r", {31, 32, 33, 34}, 0, 16);
  const StepPlan step = plan();
  ASSERT_EQ(step.stores.size(), 1U);
  EXPECT_EQ(step.stores[0].blocks.size(), 3U) << "6 slots less the 3 in quarantine";
  for (const BlockSlot& mine : step.stores[0].blocks) {
    for (const BlockSlot& doubtful : second.stores[0].blocks) {
      EXPECT_NE(mine.slot, doubtful.slot);
    }
  }
  EXPECT_EQ(view().tier.num_quarantined, 3U);
}

TEST_F(SchedulerTimeoutTest, TheEngineStaysUsableForEverythingButPlans) {
  fill({1, 2, 3, 4}, 0);
  const StepPlan lost = store(10, 2);
  arrive("loading", {1, 2, 3, 4, 5});
  ASSERT_EQ(engine_->lookup("loading", 0, 21), 16U);
  engine_->on_allocated("loading", blocks_of({40, 41, 42, 43}), 16);
  const StepPlan load = plan();
  const PlanSeq last = pass(seconds(61));
  arrive("running", {7, 8});
  schedule("running", {50, 51}, 0, 8);
  for (int i = 0; i < 3; ++i) expect_complaint({"rank 0, 1 of 2 ", "2 slots"});
  EXPECT_EQ(fold_ends(load), Ids{"loading"});
  engine_->on_finished("loading");
  EXPECT_EQ(num_hit({1, 2, 3, 4}), 4U);
  fold_ends(lost);
  const StepPlan next = plan();
  EXPECT_EQ(next.seq, last.next()) << "a plan that was not made has no number";
  EXPECT_TRUE(next.stores.empty()) << "the step that was to compute these blocks never ran";
  EXPECT_EQ(view().tier.num_quarantined, 0U);
}

// kvcached#339: a worker that never came up left the engine waiting, and nobody said for whom.
TEST_F(SchedulerTimeoutTest, ARankThatNeverRegistersIsNamedWithWhatBothSidesKnow) {
  restart();
  EXPECT_TRUE(plan().empty());
  fold({topology_report(kRankA, {.num_slots = 20})});
  pass(seconds(61));
  expect_complaint({"rank 1 of the world size 2", "has not registered",
                    "registered: rank 0 (world size 2, 20 slots)", "61 s", "rank_timeout"});
  fold({topology_report(kRankB, {.num_slots = 20})});
  EXPECT_EQ(store(10, 2).stores.size(), 1U) << "it came late, and nothing was lost";
}

TEST_F(SchedulerTimeoutTest, NoRankThatRegistersIsSaidSo) {
  restart();
  EXPECT_TRUE(plan().empty());
  pass(seconds(61));
  expect_complaint({"rank 0, 1 of the world size 2", "registered: none"});
}

TEST_F(SchedulerTimeoutTest, RanksHaveTheirTimeFromTheFirstPlanOn) {
  restart();
  now_ += std::chrono::hours(1);  // The engine loads its weights.
  pass(seconds(60));
  EXPECT_TRUE(plan().empty());
  now_ += seconds(1);
  fold({});
  expect_complaint({"rank 0, 1 of the world size 2"});
}

// An idle engine died at its next request: a store that outlasts 16 steps, a short answer, a rest.
TEST_F(SchedulerTimeoutTest, ARestBehindManyStepsFlagsNobodyAndTheFirstWordIsHeard) {
  const StepPlan step = store(10, 2);
  fold({});
  for (int i = 0; i < 40; ++i) {
    EXPECT_TRUE(plan().empty());
    fold({});
  }
  for (int rest = 0; rest < 20; ++rest) {
    now_ += std::chrono::hours(1);
    EXPECT_TRUE(plan().empty());
    fold({});
  }
  now_ += std::chrono::hours(1);
  EXPECT_TRUE(plan().empty());
  fold_ends(step);
  EXPECT_EQ(num_hit({10, 11}), 2U);
}

// Empty steps of a pause used up the plans that a rank had, and its wall-clock time ended the
// engine.
TEST_F(SchedulerTimeoutTest, ARankThatSpeaksOfItsTransfersIsNeverLostHoweverSlowTheyAre) {
  const StepPlan step = store(10, 2);
  for (int i = 0; i < 1000; ++i) {
    const StepPlan last = plan();
    now_ += seconds(3);
    fold({word(kRankA, last, step.stores[0].transfer), word(kRankB, last, TransferId(1))});
  }
  EXPECT_TRUE(plan().empty());
  fold_ends(step);
  EXPECT_EQ(num_hit({10, 11}), 2U);
}

TEST_F(SchedulerTimeoutTest, ARankThatHasForgottenAStoreIsNamed) {
  const StepPlan step = store(10, 2);
  for (int i = 0; i < 21; ++i) {
    const StepPlan last = plan();
    now_ += seconds(3);
    fold({word(kRankA, last, step.stores[0].transfer), word(kRankB, last, TransferId())});
  }
  expect_complaint({"rank 1 of 2 ", "store " + number(step.stores[0].transfer)});
}

TEST_F(SchedulerTimeoutTest, ManyPlansThatAreOutWhileRanksAnswerAtOnceFlagNobody) {
  std::vector<StepPlan> out;
  for (int i = 0; i < 40; ++i) out.push_back(plan());
  out.push_back(store(10, 2));
  const TransferId transfer = out.back().stores[0].transfer;
  for (int i = 0; i < 200; ++i) {
    now_ += seconds(3);
    const StepPlan& oldest = out[static_cast<std::size_t>(i)];
    const TransferId under_way = oldest.seq < out[40].seq ? TransferId() : transfer;
    fold({word(kRankA, oldest, under_way), word(kRankB, oldest, under_way)});
    out.push_back(plan());
  }
  fold_ends(out[40]);
  EXPECT_EQ(num_hit({10, 11}), 2U);
}

TEST_F(SchedulerTimeoutTest, AWordOfAPlanThatWasNeverMadeIsRefusedAndChangesNothing) {
  const StepPlan step = store(10, 2);
  StepPlan wrong;
  wrong.seq = step.seq.next();
  StepReport report = ends(kRankA, step);
  report.executed = wrong.seq;
  EXPECT_THROW(fold({ends(kRankB, step), report}), ProtocolError);
  fold_ends(step);
  EXPECT_EQ(num_hit({10, 11}), 2U);
}

}  // namespace
}  // namespace kvferry::connector
