// SPDX-License-Identifier: Apache-2.0
#include "scheduler_fixture.hpp"

namespace kvferry::connector {
namespace {

/// What could not be stored in its step, and what leaves the tier for what comes.
class SchedulerBacklogTest : public SchedulerTest {
 protected:
  /// Request "r" computes keys 1 and 2 into blocks 10 and 11; the second has its hash, and is
  /// cached, only behind the step: it was not stored.
  void compute_a_block_that_is_hashed_late() {
    const auto hashes = arrive("r", {1});
    schedule("r", {10, 11}, 0, 8);
    fold_ends(plan());
    hashes->append(2);
    pool_.cache(11, 2);
  }
};

// G5, kvcached#262: capacity was checked, then used.
TEST_F(SchedulerBacklogTest, WhatTheTierHasNoRoomForIsOfferedAgainAndNothingRaises) {
  register_ranks({.num_slots = 2});
  arrive("r", {1, 2});
  schedule("r", {10, 11}, 0, 8);
  arrive("other", {3});
  schedule("other", {12}, 0, 4);
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

TEST_F(SchedulerBacklogTest, ABacklogBlockThatTheEngineReallocatedIsSkippedAndCounted) {
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
TEST_F(SchedulerBacklogTest, ABlockRewrittenInThisStepUnderTheSameKeyIsNotGatheredAtTheBind) {
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

TEST_F(SchedulerBacklogTest, ABlockRewrittenByARequestThatWasNeverAnnouncedIsNotGatheredAtTheBind) {
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

TEST_F(SchedulerBacklogTest, WhatARequestLeavesWhenItFinishesWithinAStepWaitsForTheNextOne) {
  register_ranks({});
  compute_a_block_that_is_hashed_late();
  arrive("writer", {7});
  schedule("writer", {20}, 0, 4);
  engine_->on_finished("r");
  const StepPlan step = plan();
  ASSERT_EQ(step.stores.size(), 1U);
  EXPECT_EQ(block_numbers(step.stores[0].blocks), (Blocks{20}));
  EXPECT_EQ(view().num_backlog, 1U);
  fold_ends(step);
  const StepPlan next = plan();
  ASSERT_EQ(next.stores.size(), 1U);
  EXPECT_EQ(block_numbers(next.stores[0].blocks), (Blocks{11}));
  EXPECT_EQ(next.stores[0].readiness, StoreReadiness::kNow);
  EXPECT_EQ(view().num_backlog, 0U);
}

TEST_F(SchedulerBacklogTest, AResetForgetsWhatWasLeftWithinTheStep) {
  register_ranks({});
  compute_a_block_that_is_hashed_late();
  arrive("other", {7});
  schedule("other", {30}, 0, 4);
  engine_->on_finished("r");
  engine_->reset_cache();
  static_cast<void>(plan());
  EXPECT_EQ(view().num_backlog, 0U);
}

TEST_F(SchedulerBacklogTest, TwoBacklogBlocksOfOneKeyAreStoredOnce) {
  arrive("a", {1});
  arrive("b", {1});
  schedule("a", {10}, 0, 4);
  static_cast<void>(plan());
  schedule("b", {20}, 0, 4);
  static_cast<void>(plan());
  pool_.cache(10, 1);
  pool_.cache(20, 1);
  EXPECT_EQ(view().num_backlog, 2U);
  register_ranks({});
  const StepPlan step = plan();
  ASSERT_EQ(step.stores.size(), 1U);
  EXPECT_EQ(block_numbers(step.stores[0].blocks), (Blocks{10}));
}

// vllm#41704: with asynchronous scheduling the last block is hashed after the last step that the
// request is in.
TEST_F(SchedulerBacklogTest, TheLastBlockIsStoredAlthoughItIsHashedLate) {
  register_ranks({});
  compute_a_block_that_is_hashed_late();
  engine_->on_finished("r");
  const StepPlan step = plan();
  ASSERT_EQ(step.stores.size(), 1U);
  EXPECT_EQ(block_numbers(step.stores[0].blocks), (Blocks{11}));
  EXPECT_EQ(step.stores[0].readiness, StoreReadiness::kNow);
  fold_ends(step);
  EXPECT_EQ(num_hit({1, 2}), 2U);
}

// The last token that a request samples is hashed and never computed.
TEST_F(SchedulerBacklogTest, ABlockThatIsHashedButNotCachedByTheEngineIsNotStored) {
  register_ranks({});
  const auto hashes = arrive("r", {1});
  schedule("r", {10, 11}, 0, 7);
  fold_ends(plan());
  hashes->append(2);
  engine_->on_finished("r");
  EXPECT_TRUE(plan().stores.empty());
  EXPECT_EQ(view().num_backlog, 0U);
}

TEST_F(SchedulerBacklogTest, PlansSomewhatMoreThanTheRingHoldsAndKeepsTheRest) {
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

TEST_F(SchedulerBacklogTest, WithoutARingNothingIsStoredOrQueued) {
  register_ranks({.ring_blocks = 0});
  const auto hashes = arrive("r", {1, 2});
  schedule("r", {10, 11, 12}, 0, 12);
  EXPECT_TRUE(plan().stores.empty());
  EXPECT_EQ(view().num_backlog, 0U);
  hashes->append(3);
  engine_->on_finished("r");
  EXPECT_EQ(view().num_backlog, 0U);
}

TEST_F(SchedulerBacklogTest, WithoutAPoolThereIsNoBacklogToStoreFrom) {
  engine_->set_pool(nullptr);
  arrive("r", {1});
  schedule("r", {10}, 0, 4);
  static_cast<void>(plan());
  register_ranks({});
  EXPECT_TRUE(plan().stores.empty());
  EXPECT_EQ(view().num_backlog, 0U);
}

TEST_F(SchedulerBacklogTest, TailsOfPrefixesAreEvictedFirst) {
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

TEST_F(SchedulerBacklogTest, TailsAreEvictedFirstAlsoOfAPromptStoredStepByStep) {
  register_ranks({.num_slots = 6});
  arrive("r", {1, 2, 3, 4, 5});
  schedule("r", {0, 1}, 0, 8);
  fold_ends(plan());
  schedule("r", {0, 1, 2, 3}, 8, 8);
  fold_ends(plan());
  schedule("r", {0, 1, 2, 3, 4}, 16, 4);  // A single block, as a decoding request completes it.
  fold_ends(plan());
  engine_->on_finished("r");
  fill({11, 12, 13}, 10);
  EXPECT_EQ(num_hit({1, 2, 3, 4, 5}), 3U);
}

TEST_F(SchedulerBacklogTest, TailsAreEvictedFirstAlsoAfterALocalHitTouchedThem) {
  register_ranks({.num_slots = 6});
  fill({1, 2, 3, 4}, 0);
  arrive("r", {1, 2, 3, 4});
  schedule("r", {0, 1, 2, 3, 44}, 16, 1);
  static_cast<void>(plan());
  fill({5, 6, 7}, 10);
  EXPECT_EQ(num_hit({1, 2, 3, 4}), 3U);
}

}  // namespace
}  // namespace kvferry::connector
