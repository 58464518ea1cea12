// SPDX-License-Identifier: Apache-2.0
#include "kvferry/base/error.hpp"

#include "scheduler_groups_fixture.hpp"

#include <string_view>
#include <vector>

namespace kvferry::connector {
namespace {

/// An engine with two KV cache groups: full attention, and recurrent state.
class SchedulerStatesTest : public SchedulerGroupsTest {
 protected:
  static constexpr GroupId kState{1};

  SchedulerStatesTest() { restart_with({{}, {TokenReach::state(0)}}); }

  void leave_state(std::string_view id, std::uint32_t block, std::uint32_t num_tokens) {
    engine_->on_state(id, kState, BlockId(block), num_tokens);
  }
  /// Brings blocks of the full group into the tier, and the state behind the last of them.
  void fill_with_state(const std::vector<std::uint64_t>& keys, std::uint32_t first_block) {
    const std::string id = "fill " + std::to_string(++num_fills_);
    arrive(id, keys);
    std::vector<Blocks> tables(2);
    for (std::uint32_t i = 0; i < keys.size(); ++i) tables[0].push_back(first_block + i);
    tables[1].resize(keys.size());
    tables[1].back() = first_block + 10;
    const auto num_tokens = static_cast<std::uint32_t>(keys.size()) * kBlockTokens;
    schedule(id, tables, 0, num_tokens);
    leave_state(id, first_block + 10, num_tokens);
    fold_ends(plan());
    engine_->on_finished(id);
  }
};

TEST_F(SchedulerStatesTest, OnlyWhatTheEngineSaysItLeavesIsStored) {
  arrive("r", {1, 2, 3});
  // The middle block runs along: what it holds is of no boundary.
  schedule("r", {{10, 11, 12}, {0, 21, 22}}, 0, 12);
  leave_state("r", 22, 12);
  EXPECT_EQ(planned_blocks(plan()), (Blocks{22, 10, 11, 12}));
  EXPECT_EQ(view().num_backlog, 0U);
}

TEST_F(SchedulerStatesTest, StatesThatEveryBlockHasAreStoredWithoutAWord) {
  restart_with({{}, {TokenReach::states()}});
  arrive("r", {1, 2, 3});
  schedule("r", {{10, 11, 12}, {20, 21, 22}}, 0, 12);
  const StepPlan step = plan();
  EXPECT_EQ(planned_blocks(step), (Blocks{10, 11, 12, 20, 21, 22}));
  fold_ends(step);
  EXPECT_THROW(leave_state("r", 22, 12), ProtocolError);
  // Each is the end of a load, which takes no other one.
  EXPECT_EQ(ask("between", {1, 2, 9}), 2U);
  allocate("between", {{40, 41}, {0, 51}}, 8);
  EXPECT_EQ(view().tier.num_leased, 3U);
  EXPECT_EQ(fold_ends(plan()), Ids{"between"});
}

TEST_F(SchedulerStatesTest, AHitEndsAtAState) {
  fill_with_state({1, 2}, 1);
  fill_with_state({1, 2, 3, 4}, 20);
  EXPECT_EQ(ask("all", {1, 2, 3, 4}), 4U);
  EXPECT_EQ(ask("longer", {1, 2, 3, 4, 5}), 4U);
  EXPECT_EQ(ask("between", {1, 2, 3, 9}), 2U);
  EXPECT_EQ(ask("before", {1, 9}), 0U);
  EXPECT_EQ(ask("behind", {1, 2, 3, 4}, 2), 2U);
  EXPECT_EQ(ask("none behind", {1, 2, 3, 9}, 2), 0U);
}

TEST_F(SchedulerStatesTest, ALoadTakesTheStateOfItsEnd) {
  fill_with_state({1, 2}, 1);
  fill_with_state({1, 2, 3, 4}, 20);
  EXPECT_EQ(ask("r", {1, 2, 3, 4}), 4U);
  allocate("r", {{40, 41, 42, 43}, {0, 0, 0, 53}}, 16);
  const StepPlan step = plan();
  ASSERT_EQ(step.loads.size(), 1U);
  EXPECT_EQ(block_numbers(step.loads[0]), (Blocks{40, 41, 42, 43, 53}));
  EXPECT_EQ(fold_ends(step), Ids{"r"});
}

TEST_F(SchedulerStatesTest, ALoadThatTheEngineEndsWhereThereIsNoStateFails) {
  fill_with_state({1, 2, 3}, 1);
  EXPECT_EQ(ask("r", {1, 2, 3}), 3U);
  allocate("r", {{40, 41}, {0, 51}}, 8);
  EXPECT_EQ(notified(plan()), Ids{"r"});
}

TEST_F(SchedulerStatesTest, ALoadWithoutABlockForTheStateFails) {
  fill_with_state({1, 2}, 1);
  EXPECT_EQ(ask("r", {1, 2}), 2U);
  allocate("r", {{40, 41}, {51, 0}}, 8);
  const StepPlan step = plan();
  EXPECT_TRUE(step.loads.empty());
  EXPECT_EQ(notified(step), Ids{"r"});
}

TEST_F(SchedulerStatesTest, AStateThatSettlesBehindTheStepIsStoredInTheNext) {
  restart_with({{}, {TokenReach::state(2)}});
  arrive("r", {1});
  schedule("r", {{10}, {20}}, 0, 4);
  leave_state("r", 20, 4);
  EXPECT_EQ(planned_blocks(plan()), (Blocks{10}));
  pool_.cache(20, 1, kState);
  const StepPlan step = plan();
  ASSERT_EQ(step.stores.size(), 1U);
  EXPECT_EQ(step.stores[0].readiness, StoreReadiness::kNow);
  EXPECT_EQ(planned_blocks(step), (Blocks{20}));
}

TEST_F(SchedulerStatesTest, AStateIsWhereTheEngineSaysEvenIfTheTableSaysOtherwise) {
  arrive("r", {1, 2});
  schedule("r", {{10, 11}, {0, 21}}, 0, 8);
  leave_state("r", 33, 8);
  EXPECT_EQ(planned_blocks(plan()), (Blocks{33, 10, 11}));
}

TEST_F(SchedulerStatesTest, StatesComeBeforeTheBlocksOfTheirStepAndBehindTheBacklog) {
  restart_with({{}, {TokenReach::state(0)}});
  arrive("late", {7, 8});
  schedule("late", {{30, 31}, {0, 41}}, 8, 0);
  pool_.cache(30, 7, GroupId(0));
  pool_.cache(31, 8, GroupId(0));
  engine_->on_finished("late");
  static_cast<void>(plan());
  arrive("r", {1, 2});
  schedule("r", {{10, 11}, {0, 21}}, 0, 8);
  leave_state("r", 21, 8);
  const Blocks blocks = planned_blocks(plan());
  ASSERT_GE(blocks.size(), 3U);
  EXPECT_EQ(Blocks(blocks.end() - 3, blocks.end()), (Blocks{21, 10, 11}));
}

TEST_F(SchedulerStatesTest, WhatTheEngineFoundIsOfferedAgainIfThePoolStillHasIt) {
  leave_to_the_engine({1, 2}, {{10, 11}, {0, 21}});
  arrive("r", {1, 2, 3});
  schedule("r", {{10, 11, 12}, {0, 21, 22}}, 8, 2);
  EXPECT_EQ(view().num_backlog, 0U);
  EXPECT_EQ(planned_blocks(plan()), (Blocks{10, 11}));
  EXPECT_EQ(planned_blocks(plan()), (Blocks{21}));
  // The block of another state is not taken for it.
  pool_.cache(25, 99, kState);
  arrive("other", {1, 2, 3, 4});
  schedule("other", {{10, 11, 12, 13}, {0, 0, 25, 26}}, 12, 2);
  static_cast<void>(plan());
  for (const std::uint32_t block : planned_blocks(plan())) EXPECT_NE(block, 25U);
}

TEST_F(SchedulerStatesTest, ABlockThatGetsItsStateAnewIsNotReadAtTheBind) {
  leave_to_the_engine({1, 2}, {{10, 11}, {0, 21}});
  arrive("first", {1, 2});
  schedule("first", {{10, 11}, {0, 21}}, 8, 1);
  static_cast<void>(plan());
  ASSERT_GE(view().num_backlog, 1U);
  // The engine gives the block to another request of that prefix, and caches it as it schedules it.
  arrive("second", {1, 2});
  schedule("second", {{12, 13}, {0, 21}}, 0, 8);
  leave_state("second", 21, 8);
  const StepPlan step = plan();
  EXPECT_EQ(planned_blocks(step), Blocks{21}) << "the others are on their way already";
  EXPECT_EQ(step.stores[0].readiness, StoreReadiness::kAfterForward);
}

TEST_F(SchedulerStatesTest, StatesAmidABlockAndOfStrangersAreLeft) {
  arrive("r", {1, 2});
  schedule("r", {{10, 11}, {0, 21}}, 0, 8);
  leave_state("r", 21, 7);
  leave_state("r", 21, 12);
  leave_state("r", 21, 0);
  leave_state("stranger", 22, 4);
  EXPECT_EQ(planned_blocks(plan()), (Blocks{10, 11}));
}

TEST_F(SchedulerStatesTest, StatesFromBeforeAResetAreNotStored) {
  arrive("r", {1, 2});
  schedule("r", {{10}, {20}}, 0, 4);
  static_cast<void>(plan());
  engine_->reset_cache();
  schedule("r", {{10, 11}, {0, 21}}, 4, 4);
  leave_state("r", 21, 8);
  EXPECT_TRUE(plan().stores.empty());
}

TEST_F(SchedulerStatesTest, AGroupWithoutStateHasNone) {
  arrive("r", {1});
  schedule("r", {{10}, {20}}, 0, 4);
  EXPECT_THROW(engine_->on_state("r", GroupId(0), BlockId(10), 4), ProtocolError);
  EXPECT_THROW(engine_->on_state("r", GroupId(2), BlockId(10), 4), ProtocolError);
}

}  // namespace
}  // namespace kvferry::connector
