// SPDX-License-Identifier: Apache-2.0
#include "kvferry/base/error.hpp"

#include "scheduler_groups_fixture.hpp"

namespace kvferry::connector {
namespace {

TEST_F(SchedulerGroupsTest, BlocksOfEveryGroupAreStoredUnderKeysOfTheirOwn) {
  arrive("r", {1, 2});
  schedule("r", {{10, 11}, {20, 21}}, 0, 8);
  const StepPlan step = plan();
  EXPECT_EQ(planned_blocks(step), (Blocks{10, 11, 20, 21}));
  for (const StoreOrder& order : step.stores) EXPECT_EQ(order.slab_class, SlabClassId(0));
  EXPECT_EQ(view().tier.num_writable, 4U);
  EXPECT_EQ(ask("before", {1, 2}), 0U);
  fold_ends(step);
  EXPECT_EQ(view().stored, 4U);
  EXPECT_EQ(ask("after", {1, 2}), 2U);
}

TEST_F(SchedulerGroupsTest, WithTheStoresOfOneGroupAloneNothingIsOffered) {
  arrive("r", {1, 2});
  schedule("r", {{10, 11}, {20, 21}}, 0, 8);
  const StepPlan step = plan();
  ASSERT_EQ(step.stores.size(), 2U);
  StepPlan first = step;
  first.stores.pop_back();
  fold_ends(first);
  EXPECT_EQ(view().stored, 2U);
  EXPECT_EQ(ask("asker", {1, 2}), 0U);
  StepPlan second = step;
  second.stores.erase(second.stores.begin());
  fold_ends(second, Outcome::kFailed);
  EXPECT_EQ(ask("later", {1, 2}), 0U);
}

TEST_F(SchedulerGroupsTest, SingleBlocksOfAllGroupsShareATransfer) {
  arrive("a", {1});
  arrive("b", {2});
  schedule("a", {{10}, {20}}, 0, 4);
  schedule("b", {{11}, {21}}, 0, 4);
  const StepPlan step = plan();
  ASSERT_EQ(step.stores.size(), 1U);
  EXPECT_EQ(block_numbers(step.stores[0].blocks), (Blocks{10, 20, 11, 21}));
  fold_ends(step);
  EXPECT_EQ(ask("asker", {1}), 1U);
}

// The engine's own cache retains what its hits need. What it allocates for a load begins earlier.
TEST_F(SchedulerGroupsTest, WithWhatTheEngineRetainsOfALongerKeptWindowTheBlockBeforeIsStored) {
  retention_ = {Retention::Rule::kEngine, 0};
  restart_with({{}, {TokenReach::window(10), SlabClassId(0), 1, 2}});
  for (const std::uint64_t key : {4, 5}) pool_.cache(20 + key, key, kWindow);
  arrive("r", {1, 2, 3, 4, 5});
  schedule("r", {{11, 12, 13}, {21, 22, 23}}, 0, 12);
  EXPECT_EQ(planned_blocks(plan()), (Blocks{11, 12, 13}));
  schedule("r", {{14, 15}, {24, 25}}, 12, 8, TableUpdate::kAppend);
  const StepPlan step = plan();
  EXPECT_EQ(planned_blocks(step), (Blocks{14, 15, 23, 24, 25}));
}

TEST_F(SchedulerGroupsTest, NullBlocksAreNotStored) {
  leave_to_the_engine({1, 2, 3}, {{10, 11, 12}, {20, 21, 22}});
  arrive("r", {1, 2, 3, 4});
  // A local hit of three blocks, of which the window keeps two.
  schedule("r", {{10, 11, 12, 13}, {0, 21, 22, 23}}, 12, 4);
  EXPECT_EQ(planned_blocks(plan()), (Blocks{10, 11, 12, 13, 21, 22, 23}));
}

TEST_F(SchedulerGroupsTest, ASingleNullBlockIsNotStored) {
  restart_with({{}, {TokenReach::window(1)}});  // Nothing behind the last token is kept.
  arrive("r", {1});
  schedule("r", {{10}, {0}}, 0, 4);
  EXPECT_EQ(planned_blocks(plan()), (Blocks{10}));
  EXPECT_EQ(view().num_backlog, 0U);
}

TEST_F(SchedulerGroupsTest, BlockZeroIsABlockOfTheFullGroup) {
  arrive("r", {1, 2});
  schedule("r", {{0, 11}, {20, 21}}, 0, 8);
  EXPECT_EQ(planned_blocks(plan()), (Blocks{0, 11, 20, 21}));
}

TEST_F(SchedulerGroupsTest, ALoadFillsTheWholeFullGroupAndTheWindow) {
  fill_both({1, 2, 3, 4}, 1);
  EXPECT_EQ(ask("r", {1, 2, 3, 4}), 4U);
  allocate("r", {{40, 41, 42, 43}, {0, 0, 52, 53}}, 16);
  EXPECT_EQ(view().tier.num_leased, 6U);
  const StepPlan step = plan();
  ASSERT_EQ(step.loads.size(), 1U) << "one transfer for all groups: it ends as a whole";
  EXPECT_EQ(block_numbers(step.loads[0]), (Blocks{40, 41, 42, 43, 52, 53}));
  EXPECT_EQ(fold_ends(step), Ids{"r"});
  EXPECT_EQ(view().tier.num_leased, 0U);
  EXPECT_EQ(view().loaded, 6U);
  EXPECT_EQ(view().hit_tokens, 16U);
}

TEST_F(SchedulerGroupsTest, AWindowThatIsPartlyTheEnginesOwnLoadsTheRest) {
  fill_both({1, 2, 3, 4}, 1);
  EXPECT_EQ(ask("r", {1, 2, 3, 4}, 3), 1U);
  allocate("r", {{40, 41, 42, 43}, {0, 0, 52, 53}}, 4);
  EXPECT_EQ(block_numbers(plan().loads.at(0)), (Blocks{43, 53}));
}

TEST_F(SchedulerGroupsTest, AHoleInTheWindowMakesTheHitShorter) {
  arrive("storer", {1, 2, 3, 4, 5});
  schedule("storer", {{10, 11, 12, 13, 14}, {20, 21, 22, 0, 24}}, 0, 20);
  fold_ends(plan());
  EXPECT_EQ(ask("r", {1, 2, 3, 4, 5}), 3U);
  allocate("r", {{40, 41, 42}, {0, 51, 52}}, 12);
  EXPECT_EQ(block_numbers(plan().loads.at(0)), (Blocks{40, 41, 42, 51, 52}));
}

TEST_F(SchedulerGroupsTest, TheEngineMayTakeLessThanItWasOffered) {
  fill_both({1, 2, 3, 4, 5}, 1);
  EXPECT_EQ(ask("r", {1, 2, 3, 4, 5}), 5U);
  allocate("r", {{40, 41, 42}, {0, 51, 52}}, 12);
  const StepPlan step = plan();
  EXPECT_EQ(block_numbers(step.loads.at(0)), (Blocks{40, 41, 42, 51, 52}));
  EXPECT_EQ(fold_ends(step), Ids{"r"});
}

// G6: never a silent skip.
TEST_F(SchedulerGroupsTest, TakingLessWhereTheWindowIsMissingFails) {
  arrive("storer", {1, 2, 3, 4});
  schedule("storer", {{10, 11, 12, 13}, {20, 0, 22, 23}}, 0, 16);
  fold_ends(plan());
  EXPECT_EQ(ask("r", {1, 2, 3, 4}), 4U);
  allocate("r", {{40, 41, 42}, {0, 51, 52}}, 12);
  const StepPlan step = plan();
  EXPECT_TRUE(step.loads.empty());
  EXPECT_EQ(notified(step), Ids{"r"});
  EXPECT_EQ(view().tier.num_leased, 0U);
}

TEST_F(SchedulerGroupsTest, ABlockOutsideOfWhatIsLoadedMakesTheLoadFail) {
  fill_both({1, 2, 3, 4}, 1);
  EXPECT_EQ(ask("r", {1, 2, 3, 4}), 4U);
  allocate("r", {{40, 41, 42, 43}, {0, 51, 52, 53}}, 16);
  const StepPlan step = plan();
  EXPECT_TRUE(step.loads.empty());
  EXPECT_EQ(notified(step), Ids{"r"});
  EXPECT_EQ(view().tier.num_leased, 0U);
  EXPECT_EQ(fold_ends(step), Ids{"r"});
}

TEST_F(SchedulerGroupsTest, AnAllocationOfAnotherNumberOfGroupsFails) {
  fill_both({1, 2}, 1);
  EXPECT_EQ(ask("r", {1, 2}), 2U);
  engine_->on_allocated("r", blocks_of({40, 41}), 8);
  EXPECT_EQ(notified(plan()), Ids{"r"});
}

TEST_F(SchedulerGroupsTest, AScheduleOfAnotherNumberOfGroupsIsAProtocolErrorAndTouchesNothing) {
  arrive("r", {1, 2, 3});
  schedule("r", {{10, 11}, {20, 21}}, 0, 8);
  EXPECT_THROW(schedule("r", {{12}}, 8, 4, TableUpdate::kAppend), ProtocolError);
  EXPECT_THROW(schedule("r", {{12}, {22}, {32}}, 8, 4, TableUpdate::kAppend), ProtocolError);
  EXPECT_THROW(schedule("unknown", {{12}}, 8, 4), ProtocolError);
  EXPECT_EQ(planned_blocks(plan()), (Blocks{10, 11, 20, 21}));
  schedule("r", {{12}, {22}}, 8, 4, TableUpdate::kAppend);
  EXPECT_EQ(planned_blocks(plan()), (Blocks{12, 22}));
}

TEST_F(SchedulerGroupsTest, NoBlocksInAnyGroupAreNoBlocks) {
  arrive("r", {1, 2});
  schedule("r", {{10, 11}, {20, 21}}, 0, 6);
  EXPECT_EQ(planned_blocks(plan()), (Blocks{10, 20}));
  schedule("r", {}, 6, 2, TableUpdate::kAppend);
  EXPECT_EQ(planned_blocks(plan()), (Blocks{11, 21}));
}

// A long prompt in several steps: the engine gives a window's older blocks to others.
TEST_F(SchedulerGroupsTest, WhatSlidOutOfTheWindowIsStoredOnlyIfThePoolStillHoldsIt) {
  leave_to_the_engine({1, 2, 3, 4, 5}, {{10, 11, 12, 13, 14}, {20, 21, 22, 23, 24}});
  arrive("r", {1, 2, 3, 4, 5, 6});
  // Computed before anything could be stored: a local hit of five blocks.
  schedule("r", {{10, 11, 12, 13, 14, 15}, {20, 21, 22, 23, 24, 25}}, 20, 4);
  // Token 20 sees the tokens from 13 on: blocks 0 to 2 of the window are another's in a moment.
  const StepPlan step = plan();
  EXPECT_EQ(planned_blocks(step), (Blocks{10, 11, 12, 13, 14, 15, 23, 24, 25}));
  EXPECT_EQ(view().num_backlog, 3U);
  pool_.cache(20, 1, kWindow);
  pool_.cache(21, 2, GroupId(0));  // The other group's block of the same tokens.
  pool_.cache(22, 9, kWindow);     // Another's by now.
  const StepPlan next = plan();
  EXPECT_EQ(planned_blocks(next), (Blocks{20}));
  EXPECT_EQ(next.stores.at(0).readiness, StoreReadiness::kNow);
  EXPECT_EQ(view().skipped_reallocated, 2U);
  fold_ends(step);
  fold_ends(next);
  EXPECT_EQ(ask("asker", {1, 2, 3, 4, 5, 6}), 6U);
  EXPECT_EQ(ask("shorter", {1}), 1U);
  EXPECT_EQ(ask("between", {1, 2, 3}), 1U) << "blocks 1 and 2 of the window are lost";
}

// The pool names a block's hash from the scheduling of the step that computes it: gathered at the
// bind it would be what the engine left in it, under a valid key.
TEST_F(SchedulerGroupsTest, ABlockThatSlidOutAndIsRewrittenInTheSameStepIsNotGatheredAtTheBind) {
  arrive("writer", {1});
  arrive("r", {1, 2, 3, 4, 5, 6});
  schedule("writer", {{30}, {20}}, 0, 4);  // Block 20 was taken from r in this very step.
  schedule("r", {{10, 11, 12, 13, 14, 15}, {20, 21, 22, 23, 24, 25}}, 20, 4);
  pool_.cache(20, 1, kWindow);
  for (const StoreOrder& order : plan().stores) {
    for (const BlockSlot& pair : order.blocks) {
      if (pair.block == BlockId(20)) {
        EXPECT_EQ(order.readiness, StoreReadiness::kAfterForward);
      }
    }
  }
}

TEST_F(SchedulerGroupsTest, BlocksHashedLateAreOfferedInEveryGroupWhenTheRequestEnds) {
  const auto hashes = arrive("r", {1});
  schedule("r", {{10, 11}, {20, 21}}, 0, 8);
  fold_ends(plan());
  hashes->append(2);
  pool_.cache(11, 2);
  pool_.cache(21, 2, kWindow);
  engine_->on_finished("r");
  EXPECT_EQ(planned_blocks(plan()), (Blocks{11, 21}));
}

TEST_F(SchedulerGroupsTest, EveryGroupsRewrittenBlockLeavesTheBacklog) {
  restart();  // No rank has registered: everything waits.
  arrive("first", {1, 2});
  schedule("first", {{10, 11}, {20, 21}}, 0, 8);
  static_cast<void>(plan());
  engine_->on_finished("first");
  EXPECT_EQ(view().num_backlog, 4U);
  pool_.cache(10, 1);
  pool_.cache(11, 2);
  pool_.cache(20, 1, kWindow);
  pool_.cache(21, 2, kWindow);
  register_ranks({});
  arrive("second", {1, 2});
  schedule("second", {{10, 11}, {20, 21}}, 4, 4);
  for (const StoreOrder& order : plan().stores) {
    for (const BlockSlot& pair : order.blocks) {
      const bool rewritten = pair.block == BlockId(11) || pair.block == BlockId(21);
      if (rewritten) {
        EXPECT_EQ(order.readiness, StoreReadiness::kAfterForward);
      }
    }
  }
}

TEST_F(SchedulerGroupsTest, APreemptedRequestIsOfferedAnewInEveryGroup) {
  arrive("r", {1, 2});
  schedule("r", {{10, 11}, {20, 21}}, 0, 8);
  const StepPlan before = plan();
  engine_->on_preempted("r");
  fold_ends(before, Outcome::kFailed);
  schedule("r", {{30, 31}, {40, 41}}, 0, 8);
  EXPECT_EQ(planned_blocks(plan()), (Blocks{30, 31, 40, 41}));
}

TEST_F(SchedulerGroupsTest, WhatWasLoadedIsNotStoredAgain) {
  fill_both({1, 2, 3, 4}, 1);
  EXPECT_EQ(ask("r", {1, 2, 3, 4}), 4U);
  allocate("r", {{40, 41, 42, 43}, {0, 0, 52, 53}}, 16);
  fold_ends(plan());
  schedule("r", {{40, 41, 42, 43, 44}, {0, 0, 52, 53, 54}}, 16, 1);
  EXPECT_TRUE(plan().stores.empty());
  EXPECT_EQ(view().num_backlog, 0U);
}

TEST_F(SchedulerGroupsTest, ThreeGroupsServeWhatAllOfThemHave) {
  restart_with({{}, {TokenReach::window(8)}, {TokenReach::window(4)}});
  arrive("storer", {1, 2, 3, 4});
  schedule("storer", {{10, 11, 12, 13}, {20, 21, 22, 23}, {30, 31, 32, 0}}, 0, 16);
  const StepPlan step = plan();
  EXPECT_EQ(planned_blocks(step), (Blocks{10, 11, 12, 13, 20, 21, 22, 23, 30, 31, 32}));
  fold_ends(step);
  EXPECT_EQ(ask("r", {1, 2, 3, 4}), 3U) << "the third misses the last block";
  allocate("r", {{40, 41, 42}, {0, 51, 52}, {0, 0, 62}}, 12);
  const StepPlan load = plan();
  EXPECT_EQ(block_numbers(load.loads.at(0)), (Blocks{40, 41, 42, 51, 52, 62}));
  EXPECT_EQ(fold_ends(load), Ids{"r"});
}

TEST_F(SchedulerGroupsTest, AFailedLoadForgetsTheKeysOfEveryGroup) {
  fill_both({1, 2, 3, 4}, 1);
  EXPECT_EQ(ask("r", {1, 2, 3, 4}), 4U);
  allocate("r", {{40, 41, 42, 43}, {0, 0, 52, 53}}, 16);
  const StepPlan step = plan();
  fold({ends(kRankA, step), ends(kRankB, step, Outcome::kFailed)});
  EXPECT_EQ(view().tier.num_free, 30U) << "the two blocks before the window were not doubted";
  EXPECT_EQ(ask("other", {1, 2, 3, 4}), 0U);
}

}  // namespace
}  // namespace kvferry::connector
