// SPDX-License-Identifier: Apache-2.0
#include "kvferry/base/error.hpp"

#include "scheduler_fixture.hpp"

namespace kvferry::connector {
namespace {

using Blocks = std::vector<std::uint32_t>;

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
                               EndedAs outcome = EndedAs::kDone) {
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
  EXPECT_NE(step.stores[0].owner.request, RequestId());
  EXPECT_EQ(view().tier.num_writable, 2U);
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
  fold({ends(kRankB, step, EndedAs::kFailed)});
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
  arrive("a", {1, 2});
  arrive("b", {3, 4});
  schedule("a", {10, 11}, 0, 8);
  schedule("b", {20, 21}, 0, 8);
  for (std::uint32_t i = 0; i < 2; ++i) pool_.cache(10 + i, 1 + i);
  for (std::uint32_t i = 0; i < 2; ++i) pool_.cache(20 + i, 3 + i);
  const StepPlan step = plan();
  ASSERT_EQ(step.stores.size(), 2U);
  fold({gathers(kRankA, step, {1, 0}), gathers(kRankB, step, {1, 0})});
  const StepPlan next = plan();
  ASSERT_EQ(next.stores.size(), 1U);
  EXPECT_EQ(block_numbers(next.stores[0].blocks), (Blocks{11, 20, 21}));
}

// G5, kvcached#262: capacity was checked, then used.
TEST_F(SchedulerStoreTest, WhatTheTierHasNoRoomForIsOfferedAgainAndNothingRaises) {
  register_ranks({.num_slots = 2});
  arrive("r", {1, 2, 3});
  schedule("r", {10, 11, 12}, 0, 12);
  for (std::uint32_t i = 0; i < 3; ++i) pool_.cache(10 + i, 1 + i);
  const StepPlan step = plan();
  ASSERT_EQ(step.stores.size(), 1U);
  EXPECT_EQ(block_numbers(step.stores[0].blocks), (Blocks{10, 11}));
  EXPECT_EQ(view().num_backlog, 1U);
  EXPECT_EQ(view().skipped_exhausted, 1U);
  EXPECT_TRUE(plan().stores.empty()) << "both slots are still being written";
  EXPECT_EQ(view().num_backlog, 1U);
  fold_ends(step);
  const StepPlan next = plan();
  ASSERT_EQ(next.stores.size(), 1U);
  EXPECT_EQ(block_numbers(next.stores[0].blocks), (Blocks{12}));
  EXPECT_EQ(view().num_backlog, 0U);
}

TEST_F(SchedulerStoreTest, ABacklogBlockThatTheEngineReallocatedIsSkippedAndCounted) {
  arrive("r", {1, 2});
  schedule("r", {10, 11}, 0, 8);
  pool_.cache(10, 1);
  pool_.cache(11, 2);
  static_cast<void>(plan());
  EXPECT_EQ(view().num_backlog, 2U);
  register_ranks({});
  pool_.reallocate(10);
  const StepPlan step = plan();
  ASSERT_EQ(step.stores.size(), 1U);
  EXPECT_EQ(block_numbers(step.stores[0].blocks), (Blocks{11}));
  EXPECT_EQ(view().skipped_reallocated, 1U);
}

// The pool names a block's hash from the scheduling of the step that computes it: `holds` is no
// proof that nothing writes the block. Gathered at the bind, it would be its old content under a
// valid key.
TEST_F(SchedulerStoreTest, ABlockRewrittenInThisStepUnderTheSameKeyIsNotGatheredAtTheBind) {
  arrive("first", {1, 2});
  schedule("first", {10, 11}, 0, 8);
  pool_.cache(10, 1);
  pool_.cache(11, 2);
  static_cast<void>(plan());
  engine_->on_finished("first");
  EXPECT_EQ(view().num_backlog, 2U);
  register_ranks({});
  // Block 11 was taken for something else and comes back as the second block of the same prompt.
  arrive("second", {1, 2});
  schedule("second", {10, 11}, 4, 4);
  const StepPlan step = plan();
  for (const StoreOrder& order : step.stores) {
    for (const BlockSlot& pair : order.blocks) {
      if (pair.block == BlockId(11)) {
        EXPECT_EQ(order.readiness, StoreReadiness::kAfterForward);
      }
    }
  }
  fold_ends(step);
  EXPECT_EQ(num_hit({1, 2}), 2U);
}

TEST_F(SchedulerStoreTest, ABlockRewrittenByARequestThatWasNeverAnnouncedIsNotGatheredAtTheBind) {
  arrive("first", {1, 2});
  schedule("first", {10, 11}, 0, 8);
  pool_.cache(10, 1);
  pool_.cache(11, 2);
  static_cast<void>(plan());
  engine_->on_finished("first");
  register_ranks({});
  schedule("unknown", {10, 11}, 4, 4);
  const StepPlan step = plan();
  ASSERT_EQ(step.stores.size(), 1U);
  EXPECT_EQ(block_numbers(step.stores[0].blocks), (Blocks{10}));
}

// vllm#41289: duplicate stores of one block.
TEST_F(SchedulerStoreTest, EqualKeysAreStoredOnce) {
  register_ranks({});
  arrive("a", {1, 2});
  arrive("b", {1, 2, 3});
  schedule("a", {10, 11}, 0, 8);
  schedule("b", {20, 21, 22}, 0, 12);
  const StepPlan step = plan();
  ASSERT_EQ(step.stores.size(), 2U);
  EXPECT_EQ(block_numbers(step.stores[0].blocks), (Blocks{10, 11}));
  EXPECT_EQ(block_numbers(step.stores[1].blocks), (Blocks{22}));
  // And while they are on their way, and afterwards.
  arrive("c", {1, 2});
  schedule("c", {30, 31}, 0, 8);
  EXPECT_TRUE(plan().stores.empty());
  fold_ends(step);
  arrive("d", {1, 2, 3});
  schedule("d", {40, 41, 42}, 0, 12);
  EXPECT_TRUE(plan().stores.empty());
}

TEST_F(SchedulerStoreTest, TwoBacklogBlocksOfOneKeyAreStoredOnce) {
  arrive("a", {1});
  arrive("b", {1});
  schedule("a", {10}, 0, 4);
  schedule("b", {20}, 0, 4);
  pool_.cache(10, 1);
  pool_.cache(20, 1);
  static_cast<void>(plan());
  EXPECT_EQ(view().num_backlog, 2U);
  register_ranks({});
  const StepPlan step = plan();
  ASSERT_EQ(step.stores.size(), 1U);
  EXPECT_EQ(block_numbers(step.stores[0].blocks), (Blocks{10}));
}

// vllm#41289.
TEST_F(SchedulerStoreTest, EachBlockOfARunningRequestIsPlannedOnce) {
  register_ranks({});
  arrive("r", {1, 2, 3, 4});
  schedule("r", {10, 11}, 0, 6);
  EXPECT_EQ(block_numbers(plan().stores.at(0).blocks), (Blocks{10}));
  engine_->on_scheduled("r", TableUpdate::kAppend, {}, 6, 1);
  EXPECT_TRUE(plan().stores.empty());
  engine_->on_scheduled("r", TableUpdate::kAppend, blocks_of({12}), 7, 5);
  EXPECT_EQ(block_numbers(plan().stores.at(0).blocks), (Blocks{11, 12}));
  engine_->on_scheduled("r", TableUpdate::kAppend, blocks_of({13}), 12, 1);
  EXPECT_TRUE(plan().stores.empty());
}

// vllm#41704: with asynchronous scheduling the last block is hashed after the last step that the
// request is in.
TEST_F(SchedulerStoreTest, TheLastBlockIsStoredAlthoughItIsHashedLate) {
  register_ranks({});
  const auto hashes = arrive("r", {1});
  schedule("r", {10, 11}, 0, 8);
  fold_ends(plan());
  hashes->append(2);
  pool_.cache(11, 2);
  engine_->on_finished("r");
  const StepPlan step = plan();
  ASSERT_EQ(step.stores.size(), 1U);
  EXPECT_EQ(block_numbers(step.stores[0].blocks), (Blocks{11}));
  EXPECT_EQ(step.stores[0].readiness, StoreReadiness::kNow);
  fold_ends(step);
  EXPECT_EQ(num_hit({1, 2}), 2U);
}

// The last token that a request samples is hashed and never computed.
TEST_F(SchedulerStoreTest, ABlockThatIsHashedButNotCachedByTheEngineIsNotStored) {
  register_ranks({});
  const auto hashes = arrive("r", {1});
  schedule("r", {10, 11}, 0, 7);
  fold_ends(plan());
  hashes->append(2);
  engine_->on_finished("r");
  EXPECT_TRUE(plan().stores.empty());
  EXPECT_EQ(view().num_backlog, 0U);
}

TEST_F(SchedulerStoreTest, APreemptedRequestIsOfferedAnewFromItsNewTable) {
  register_ranks({});
  arrive("r", {1, 2, 3});
  schedule("r", {10, 11}, 0, 8);
  const StepPlan before = plan();
  engine_->on_preempted("r");
  EXPECT_TRUE(plan().stores.empty());
  fold_ends(before, EndedAs::kFailed);
  schedule("r", {20, 21, 22}, 0, 12);
  const StepPlan after = plan();
  ASSERT_EQ(after.stores.size(), 1U);
  EXPECT_EQ(block_numbers(after.stores[0].blocks), (Blocks{20, 21, 22}));
  EXPECT_EQ(after.stores[0].owner.request, before.stores[0].owner.request);
  EXPECT_NE(after.stores[0].owner.generation, before.stores[0].owner.generation);
}

TEST_F(SchedulerStoreTest, ARolledBackRequestIsOfferedAgainFromWhereItComputes) {
  register_ranks({});
  arrive("r", {1, 2, 3});
  schedule("r", {10, 11, 12}, 0, 12);
  fold_ends(plan(), EndedAs::kFailed);
  // The engine takes it back to its first block, without preemption.
  engine_->on_scheduled("r", TableUpdate::kAppend, {}, 4, 8);
  const StepPlan step = plan();
  ASSERT_EQ(step.stores.size(), 1U);
  EXPECT_EQ(block_numbers(step.stores[0].blocks), (Blocks{11, 12}));
}

TEST_F(SchedulerStoreTest, PlansSomewhatMoreThanTheRingHoldsAndKeepsTheRest) {
  register_ranks({.num_slots = 64, .ring_blocks = 4});
  std::vector<std::uint64_t> keys;
  Blocks table;
  for (std::uint32_t i = 0; i < 30; ++i) {
    keys.push_back(100 + i);
    table.push_back(i);
  }
  arrive("r", keys);
  schedule("r", table, 0, 120);
  const StepPlan step = plan();
  ASSERT_EQ(step.stores.size(), 1U);
  EXPECT_GT(step.stores[0].blocks.size(), 4U);
  EXPECT_LT(step.stores[0].blocks.size(), 30U);
  EXPECT_EQ(step.stores[0].blocks.size() + view().num_backlog, 30U);
}

TEST_F(SchedulerStoreTest, WithoutARingNothingIsStoredOrQueued) {
  register_ranks({.ring_blocks = 0});
  const auto hashes = arrive("r", {1, 2});
  schedule("r", {10, 11, 12}, 0, 12);
  EXPECT_TRUE(plan().stores.empty());
  EXPECT_EQ(view().num_backlog, 0U);
  hashes->append(3);
  engine_->on_finished("r");
  EXPECT_EQ(view().num_backlog, 0U);
}

TEST_F(SchedulerStoreTest, WithoutAPoolThereIsNoBacklogToStoreFrom) {
  engine_->set_pool(nullptr);
  arrive("r", {1});
  schedule("r", {10}, 0, 4);
  static_cast<void>(plan());
  register_ranks({});
  EXPECT_TRUE(plan().stores.empty());
  EXPECT_EQ(view().num_backlog, 0U);
}

TEST_F(SchedulerStoreTest, ASecondWordOnAStoreIsCountedAndIgnored) {
  register_ranks({});
  arrive("r", {1});
  schedule("r", {10}, 0, 4);
  const StepPlan step = plan();
  fold({ends(kRankA, step)});
  fold({ends(kRankA, step, EndedAs::kFailed)});
  EXPECT_EQ(view().stale_reports, 2U);
  fold({ends(kRankB, step)});
  EXPECT_EQ(view().stored, 1U);
  fold({ends(kRankB, step)});
  EXPECT_EQ(view().stale_reports, 4U);
}

TEST_F(SchedulerStoreTest, TailsOfPrefixesAreEvictedFirst) {
  register_ranks({.num_slots = 6});
  fill({1, 2, 3, 4}, 0);
  fill({5, 6, 7, 8}, 10);
  EXPECT_EQ(num_hit({1, 2, 3, 4}), 2U);
  EXPECT_EQ(num_hit({5, 6, 7, 8}), 4U);
  fill({9, 10}, 20);
  EXPECT_EQ(num_hit({1, 2, 3, 4}), 0U);
  EXPECT_EQ(num_hit({5, 6, 7, 8}), 4U);
  fill({11}, 30);
  EXPECT_EQ(num_hit({5, 6, 7, 8}), 3U);
}

}  // namespace
}  // namespace kvferry::connector
