// SPDX-License-Identifier: Apache-2.0
#include "scheduler_fixture.hpp"

namespace kvferry::connector {
namespace {

class SchedulerStoreTest : public SchedulerTest {
 protected:
  /// A report that a rank gathered so many of each store, in order; without their ends.
  static StepReport gathers(RankId rank, const StepPlan& plan,
                            const std::vector<std::uint32_t>& counts) {
    StepReport report = report_of(rank);
    for (std::size_t i = 0; i < plan.stores.size(); ++i) {
      report.gathered.push_back({plan.stores[i].transfer, counts.at(i)});
    }
    return report;
  }
  static StepReport stores_end(RankId rank, const StepPlan& plan,
                               Outcome outcome = Outcome::kDone) {
    StepReport report = report_of(rank);
    for (const StoreOrder& order : plan.stores) {
      report.stores.push_back({order.transfer, outcome, ""});
    }
    return report;
  }
};

TEST_F(SchedulerStoreTest, PlansTheWholeBlocksThatTheStepCompletes) {
  register_ranks({});
  arrive("r", {1, 2, 3});
  schedule("r", {10, 11, 12}, 0, 10);
  const StepPlan step = plan();
  EXPECT_EQ(step.domain, kDomain);
  ASSERT_EQ(step.stores.size(), 1U);
  EXPECT_EQ(block_numbers(step.stores[0].blocks), (Blocks{10, 11}));
  EXPECT_EQ(step.stores[0].readiness, StoreReadiness::kAfterForward);
  EXPECT_EQ(step.stores[0].owner.domain, kDomain);
  EXPECT_EQ(view().tier.num_writable, 2U);
}

TEST_F(SchedulerStoreTest, RequestsThatCompleteOneBlockShareATransferOthersHaveTheirOwn) {
  register_ranks({});
  arrive("long", {1, 2, 3, 4, 5, 6});
  arrive("short", {7});
  arrive("other", {8});
  schedule("short", {20}, 0, 4);
  schedule("long", {10, 11, 12, 13, 14, 15}, 0, 24);
  schedule("other", {30}, 0, 4);
  const StepPlan step = plan();
  ASSERT_EQ(step.stores.size(), 2U);
  EXPECT_EQ(block_numbers(step.stores[0].blocks), (Blocks{10, 11, 12, 13, 14, 15}));
  EXPECT_NE(step.stores[0].owner.request, RequestId());
  EXPECT_EQ(block_numbers(step.stores[1].blocks), (Blocks{20, 30}));
  EXPECT_EQ(step.stores[1].owner.request, RequestId());
  EXPECT_NE(step.stores[0].owner, step.stores[1].owner);
}

TEST_F(SchedulerStoreTest, EveryPlanHasTheNextSequenceNumberAnEmptyOneToo) {
  register_ranks({});
  const PlanSeq first = plan().seq;
  const StepPlan second = plan();
  EXPECT_TRUE(second.empty());
  EXPECT_EQ(second.seq, first.next());
}

// G1, vllm#42085: in-flight stores held the blocks of requests that had ended.
TEST_F(SchedulerStoreTest, NeedsNothingOfTheRequestOnceItIsPlanned) {
  register_ranks({});
  arrive("r", {1, 2});
  schedule("r", {10, 11}, 0, 8);
  const StepPlan step = plan();
  engine_->on_finished("r");
  EXPECT_EQ(view().num_requests, 0U);
  EXPECT_EQ(view().num_tombstones, 0U);
  pool_.reallocate(10);
  pool_.reallocate(11);
  fold_ends(step);
  EXPECT_EQ(view().stored, 2U);
  EXPECT_EQ(num_hit({1, 2}), 2U);
}

TEST_F(SchedulerStoreTest, IsReadableOnlyAfterEveryRankStoredIt) {
  register_ranks({});
  arrive("r", {1, 2});
  schedule("r", {10, 11}, 0, 8);
  const StepPlan step = plan();
  EXPECT_EQ(num_hit({1, 2}), 0U);
  fold({ends(kRankA, step)});
  EXPECT_EQ(num_hit({1, 2}), 0U);
  fold({ends(kRankB, step)});
  EXPECT_EQ(num_hit({1, 2}), 2U);
}

// dynamo#15079, LMCache#4991: a failed transfer was counted as complete and served.
TEST_F(SchedulerStoreTest, IsNeverReadableIfOneRankFailed) {
  register_ranks({});
  arrive("r", {1, 2});
  schedule("r", {10, 11}, 0, 8);
  const StepPlan step = plan();
  fold({ends(kRankB, step, Outcome::kFailed)});
  EXPECT_EQ(view().tier.num_free, 30U) << "rank A may still write the slots";
  fold({ends(kRankA, step)});
  EXPECT_EQ(num_hit({1, 2}), 0U);
  EXPECT_EQ(view().failed_stores, 2U);
  EXPECT_EQ(view().stored, 0U);
  EXPECT_EQ(view().tier.num_free, 32U);
}

TEST_F(SchedulerStoreTest, CommitsWhatEveryRankGatheredAndOffersTheRestAgain) {
  register_ranks({});
  arrive("r", {1, 2, 3, 4, 5});
  schedule("r", {10, 11, 12, 13, 14}, 0, 20);
  for (std::uint32_t i = 0; i < 5; ++i) pool_.cache(10 + i, 1 + i);
  const StepPlan step = plan();
  fold({gathers(kRankA, step, {3})});
  EXPECT_EQ(view().tier.num_writable, 5U);
  fold({gathers(kRankB, step, {2})});
  EXPECT_EQ(view().tier.num_writable, 2U);
  EXPECT_EQ(view().tier.num_aborted, 1U) << "rank A still writes the third";
  EXPECT_EQ(view().tier.num_free, 29U);
  EXPECT_EQ(view().num_backlog, 3U);
  EXPECT_EQ(view().skipped_ring, 3U);
  fold({stores_end(kRankB, step)});
  EXPECT_EQ(view().tier.num_aborted, 1U);
  fold({stores_end(kRankA, step)});
  EXPECT_EQ(view().tier.num_aborted, 0U);
  EXPECT_EQ(view().stored, 2U);
  EXPECT_EQ(num_hit({1, 2, 3, 4, 5}), 2U);

  const StepPlan next = plan();
  ASSERT_EQ(next.stores.size(), 1U);
  EXPECT_EQ(next.stores[0].readiness, StoreReadiness::kNow);
  EXPECT_EQ(next.stores[0].owner.request, RequestId());
  EXPECT_EQ(block_numbers(next.stores[0].blocks), (Blocks{12, 13, 14}));
  fold_ends(next);
  EXPECT_EQ(num_hit({1, 2, 3, 4, 5}), 5U);
}

// A plan was bound by a rank that never saved it: its slots stayed reserved for ever.
TEST_F(SchedulerStoreTest, AStoreThatNoRankGatheredEndsByThat) {
  register_ranks({});
  arrive("r", {1, 2});
  schedule("r", {10, 11}, 0, 8);
  const StepPlan step = plan();
  fold({gathers(kRankA, step, {0}), gathers(kRankB, step, {0})});
  EXPECT_EQ(view().num_stores_in_flight, 0U);
  EXPECT_EQ(view().tier.num_free, 32U);
  EXPECT_EQ(view().num_backlog, 2U);
}

TEST_F(SchedulerStoreTest, AStoreThatOneRankSkippedWholeEndsWithTheOther) {
  register_ranks({});
  arrive("r", {1, 2});
  schedule("r", {10, 11}, 0, 8);
  const StepPlan step = plan();
  fold({gathers(kRankA, step, {0}), gathers(kRankB, step, {2})});
  EXPECT_EQ(view().tier.num_aborted, 2U);
  fold({stores_end(kRankB, step)});
  EXPECT_EQ(view().num_stores_in_flight, 0U);
  EXPECT_EQ(view().tier.num_free, 32U);
  EXPECT_EQ(num_hit({1, 2}), 0U);
}

TEST_F(SchedulerStoreTest, SkippedBlocksComeBackOldestFirst) {
  register_ranks({});
  arrive("a", {1, 2, 3, 4, 5});
  arrive("b", {6, 7});
  schedule("a", {10, 11, 12, 13, 14}, 0, 20);
  schedule("b", {20, 21}, 0, 8);
  for (std::uint32_t i = 0; i < 5; ++i) pool_.cache(10 + i, 1 + i);
  for (std::uint32_t i = 0; i < 2; ++i) pool_.cache(20 + i, 6 + i);
  const StepPlan step = plan();
  ASSERT_EQ(step.stores.size(), 2U);
  fold({gathers(kRankA, step, {3, 0}), gathers(kRankB, step, {3, 0})});
  EXPECT_EQ(planned_blocks(plan()), (Blocks{13, 14, 20, 21}));
}

// vllm#41289: duplicate stores of one block.
TEST_F(SchedulerStoreTest, EqualKeysAreStoredOnce) {
  register_ranks({});
  arrive("a", {1, 2});
  arrive("b", {1, 2, 3});
  schedule("a", {10, 11}, 0, 8);
  schedule("b", {20, 21, 22}, 0, 12);
  const StepPlan step = plan();
  EXPECT_EQ(planned_blocks(step), (Blocks{10, 11, 22}));
  // And while they are on their way, and afterwards.
  arrive("c", {1, 2});
  schedule("c", {30, 31}, 0, 8);
  EXPECT_TRUE(plan().stores.empty());
  fold_ends(step);
  arrive("d", {1, 2, 3});
  schedule("d", {40, 41, 42}, 0, 12);
  EXPECT_TRUE(plan().stores.empty());
}

TEST_F(SchedulerStoreTest, EqualKeysOfSingleBlocksAreStoredOnce) {
  register_ranks({});
  arrive("a", {1});
  arrive("b", {1});
  arrive("c", {2});
  schedule("a", {10}, 0, 4);
  schedule("b", {20}, 0, 4);
  schedule("c", {30}, 0, 4);
  EXPECT_EQ(planned_blocks(plan()), (Blocks{10, 30}));
}

TEST_F(SchedulerStoreTest, EqualKeysOfLongPromptsAreStoredOnce) {
  register_ranks({});
  arrive("a", {1, 2, 3, 4, 5, 6});
  arrive("b", {1, 2, 3, 4, 5, 7});
  arrive("c", {1});
  schedule("a", {10, 11, 12, 13, 14, 15}, 0, 24);
  schedule("b", {20, 21, 22, 23, 24, 25}, 0, 24);
  schedule("c", {30}, 0, 4);
  EXPECT_EQ(planned_blocks(plan()), (Blocks{10, 11, 12, 13, 14, 15, 25}));
}

// vllm#41289.
TEST_F(SchedulerStoreTest, EachBlockOfARunningRequestIsPlannedOnce) {
  register_ranks({});
  arrive("r", {1, 2, 3, 4});
  schedule("r", {10, 11}, 0, 6);
  EXPECT_EQ(block_numbers(plan().stores.at(0).blocks), (Blocks{10}));
  engine_->on_scheduled("r", TableUpdate::kAppend, blocks_of({}), 6, 1);
  EXPECT_TRUE(plan().stores.empty());
  engine_->on_scheduled("r", TableUpdate::kAppend, blocks_of({12}), 7, 5);
  EXPECT_EQ(block_numbers(plan().stores.at(0).blocks), (Blocks{11, 12}));
  engine_->on_scheduled("r", TableUpdate::kAppend, blocks_of({13}), 12, 1);
  EXPECT_TRUE(plan().stores.empty());
}

TEST_F(SchedulerStoreTest, APreemptedRequestIsOfferedAnewFromItsNewTable) {
  register_ranks({});
  arrive("r", {1, 2, 3, 4, 5, 6});
  schedule("r", {10, 11, 12, 13, 14}, 0, 20);
  const StepPlan before = plan();
  engine_->on_preempted("r");
  EXPECT_TRUE(plan().stores.empty());
  fold_ends(before, Outcome::kFailed);
  schedule("r", {20, 21, 22, 23, 24, 25}, 0, 24);
  const StepPlan after = plan();
  ASSERT_EQ(after.stores.size(), 1U);
  EXPECT_EQ(block_numbers(after.stores[0].blocks), (Blocks{20, 21, 22, 23, 24, 25}));
  EXPECT_EQ(after.stores[0].owner.request, before.stores[0].owner.request);
  EXPECT_NE(after.stores[0].owner.generation, before.stores[0].owner.generation);
}

TEST_F(SchedulerStoreTest, ARolledBackRequestIsOfferedAgainFromWhereItComputes) {
  register_ranks({});
  arrive("r", {1, 2, 3});
  schedule("r", {10, 11, 12}, 0, 12);
  fold_ends(plan(), Outcome::kFailed);
  // The engine takes it back to its first block, without preemption.
  engine_->on_scheduled("r", TableUpdate::kAppend, blocks_of({}), 4, 8);
  const StepPlan step = plan();
  ASSERT_EQ(step.stores.size(), 1U);
  EXPECT_EQ(block_numbers(step.stores[0].blocks), (Blocks{11, 12}));
}

TEST_F(SchedulerStoreTest, ARankThatGatheredMoreThanWasPlannedContradictsThePlan) {
  register_ranks({});
  arrive("r", {1, 2});
  schedule("r", {0, 1}, 0, 8);
  const StepPlan sent = plan();
  StepReport report = report_of(kRankA);
  report.gathered.push_back({sent.stores[0].transfer, 3});
  EXPECT_THROW(fold({report}), ProtocolError);
}

// The engine's order of hooks does not forbid it, and a candidate must not outlive its request.
TEST_F(SchedulerStoreTest, ARequestThatFinishesBehindItsSchedulingIsNotPlanned) {
  register_ranks({});
  arrive("gone", {1, 2, 3});
  arrive("single", {4});
  arrive("stays", {5, 6});
  schedule("gone", {10, 11, 12}, 0, 12);
  schedule("single", {20}, 0, 4);
  schedule("stays", {30, 31}, 0, 8);
  for (std::uint32_t i = 0; i < 3; ++i) pool_.cache(10 + i, 1 + i);  // Scheduled, so named already.
  pool_.cache(20, 4);
  engine_->on_finished("gone");
  engine_->on_finished("gone");
  engine_->on_finished("single");
  EXPECT_EQ(planned_blocks(plan()), (Blocks{30, 31}));
  EXPECT_EQ(view().num_backlog, 0U) << "nobody knows whether the step wrote them";
}

TEST_F(SchedulerStoreTest, ARequestWhoseIdComesAgainBehindItsSchedulingIsNotPlanned) {
  register_ranks({});
  arrive("r", {1, 2});
  schedule("r", {10, 11}, 0, 8);
  arrive("r", {3, 4});
  schedule("r", {20, 21}, 0, 8);
  EXPECT_EQ(planned_blocks(plan()), (Blocks{20, 21}));
}

TEST_F(SchedulerStoreTest, ASecondWordOnAStoreIsCountedAndIgnored) {
  register_ranks({});
  arrive("r", {1});
  schedule("r", {10}, 0, 4);
  const StepPlan step = plan();
  fold({ends(kRankA, step)});
  fold({ends(kRankA, step, Outcome::kFailed)});
  EXPECT_EQ(view().stale_reports, 2U);
  fold({ends(kRankB, step)});
  EXPECT_EQ(view().stored, 1U);
  fold({ends(kRankB, step)});
  EXPECT_EQ(view().stale_reports, 4U);
}

}  // namespace
}  // namespace kvferry::connector
