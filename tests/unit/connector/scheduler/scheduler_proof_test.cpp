// SPDX-License-Identifier: Apache-2.0
#include "proven_blocks.hpp"
#include "scheduler_groups_fixture.hpp"

#include <vector>

namespace kvferry::connector {
namespace {

/// What is stored of blocks that the engine's pool has under a key, and that nobody has computed.
class SchedulerProofTest : public SchedulerTest {
 protected:
  SchedulerProofTest() { register_ranks({}); }

  void cache(const Blocks& blocks, std::uint64_t first_key) {
    for (std::size_t i = 0; i < blocks.size(); ++i) pool_.cache(blocks[i], first_key + i);
  }
  /// The request is looked up and runs in one pass; behind its local tokens another connector
  /// loads, up to `num_computed`.
  void run_behind_a_load(std::string_view id, const Blocks& table, std::uint32_t num_local,
                         std::uint32_t num_computed, std::uint32_t num_scheduled) {
    static_cast<void>(engine_->lookup(id, num_local, 1000));
    schedule(id, table, num_computed, num_scheduled);
  }
  void more(std::string_view id, const Blocks& added, std::uint32_t num_computed,
            std::uint32_t num_scheduled) {
    engine_->on_scheduled(id, TableUpdate::kAppend, blocks_of(added), num_computed, num_scheduled);
  }
  /// Two plans, and what they store; all of it ends.
  Blocks stored_now() {
    Blocks blocks;
    for (int i = 0; i < 2; ++i) {
      const StepPlan step = plan();
      const Blocks of_step = planned_blocks(step);
      blocks.insert(blocks.end(), of_step.begin(), of_step.end());
      fold_ends(step);
    }
    return blocks;
  }
};

TEST_F(SchedulerProofTest, WhatTheEngineFoundAndNobodyComputedIsNotStored) {
  cache({10, 11}, 1);
  arrive("r", {1, 2, 3});
  schedule("r", {10, 11, 12}, 8, 4);
  EXPECT_EQ(stored_now(), Blocks{}) << "what is computed behind unproven blocks is not proven";
}

// vLLM hashes a block, and preempts its request in the same pass.
TEST_F(SchedulerProofTest, ABlockThatIsHashedAndNotComputedBeforeItsPreemptionIsNotStored) {
  arrive("r", {1, 2, 3});
  schedule("r", {10, 11, 12}, 0, 11);
  cache({10, 11, 12}, 1);
  engine_->on_preempted("r");
  EXPECT_EQ(num_hit({1, 2, 3}), 0U);
  EXPECT_EQ(stored_now(), (Blocks{10, 11}));
  // Nor if another request finds it.
  arrive("finder", {1, 2, 3, 4});
  schedule("finder", {10, 11, 12, 13}, 12, 4);
  EXPECT_EQ(stored_now(), Blocks{});
  EXPECT_EQ(num_hit({1, 2, 3, 4}), 2U);
}

// A draft's KV is in the block when the token that comes in its place is known.
TEST_F(SchedulerProofTest, WhatOnlyDraftsHaveFilledIsNotStored) {
  const auto hashes = arrive("r", {1});
  schedule("r", {10, 11}, 0, 5);
  fold_ends(plan());
  engine_->on_scheduled("r", TableUpdate::kAppend, {}, StepTokens{5, 4, 3});
  fold_ends(plan());
  hashes->append(2);
  pool_.cache(11, 2);
  engine_->on_preempted("r");
  EXPECT_EQ(stored_now(), Blocks{});
}

TEST_F(SchedulerProofTest, AcceptedDraftsAreStoredWithTheStepBehindThem) {
  const auto hashes = arrive("r", {1});
  schedule("r", {10, 11}, 0, 5);
  fold_ends(plan());
  engine_->on_scheduled("r", TableUpdate::kAppend, {}, StepTokens{5, 4, 3});
  fold_ends(plan());
  hashes->append(2);
  more("r", {12}, 9, 1);
  EXPECT_EQ(stored_now(), Blocks{11});
}

TEST_F(SchedulerProofTest, AProofFromBeforeIsVoidWhenTheKeyIsGivenToTheBlockAgainAndNotComputed) {
  fill({1, 2, 3}, 10);
  cache({10, 11, 12}, 1);
  engine_->reset_cache();
  arrive("r", {1, 2, 3});
  schedule("r", {10, 11, 20}, 8, 2);
  fold_ends(plan());
  // Block 12 was taken for the request again in the pass that preempts it, and its bytes are gone.
  engine_->on_preempted("r");
  arrive("finder", {1, 2, 3, 4});
  schedule("finder", {10, 11, 12, 13}, 12, 4);
  for (const std::uint32_t block : stored_now()) EXPECT_LT(block, 12U);
}

TEST_F(SchedulerProofTest, WhatIsComputedOverIsProvenAnew) {
  cache({10, 11}, 1);
  arrive("r", {1, 2, 3});
  schedule("r", {10, 11, 12}, 8, 4);
  EXPECT_EQ(stored_now(), Blocks{});
  more("r", {}, 0, 12);
  EXPECT_EQ(stored_now(), (Blocks{10, 11, 12}));
}

TEST_F(SchedulerProofTest, AnotherConnectorsSynchronousLoadWaitsForTheOutputOfItsStep) {
  arrive("r", {1, 2, 3});
  run_behind_a_load("r", {10, 11, 12}, 0, 8, 4);
  cache({10, 11, 12}, 1);
  const StepPlan step = plan();
  EXPECT_EQ(planned_blocks(step), Blocks{});
  EXPECT_EQ(planned_blocks(plan()), Blocks{}) << "nobody has answered";
  fold_ends(step);
  EXPECT_EQ(stored_now(), (Blocks{10, 11, 12}));
}

TEST_F(SchedulerProofTest, OneRanksAnswerIsNotTheStepsOutput) {
  arrive("r", {1, 2, 3});
  run_behind_a_load("r", {10, 11, 12}, 0, 8, 4);
  cache({10, 11, 12}, 1);
  const StepPlan step = plan();
  fold({ends(kRankA, step)});
  EXPECT_EQ(planned_blocks(plan()), Blocks{});
  fold({ends(kRankB, step)});
  EXPECT_EQ(stored_now().size(), 3U);
}

TEST_F(SchedulerProofTest, NothingOfAFailedSynchronousLoadIsStoredNorWhatFollowsFromIt) {
  arrive("r", {1, 2, 3});
  run_behind_a_load("r", {10, 11, 12}, 0, 8, 4);
  cache({10, 11, 12}, 1);
  // Found in the pass that loads it.
  arrive("finder", {1, 2, 3, 4});
  schedule("finder", {10, 11, 12, 13}, 12, 4);
  const StepPlan step = plan();
  const std::vector<BlockId> invalid = blocks_of({11});
  engine_->on_blocks_invalid(invalid);
  fold_ends(step);
  EXPECT_EQ(stored_now(), Blocks{});
  engine_->on_finished("finder");
  // The engine computes again from the failed block on.
  more("r", {}, 4, 8);
  EXPECT_EQ(stored_now(), Blocks{}) << "of block 10 it was never shown that it came";
}

// vLLM may run on who shares a block that failed, before the block is computed anew.
TEST_F(SchedulerProofTest, WhatWasComputedBehindABlockBeforeThatWasWrittenAnewIsNotStored) {
  for (const std::uint32_t first_chunk : {12U, 4U}) {
    restart();
    register_ranks({});
    arrive("r", {1, 2, 3});
    run_behind_a_load("r", {10, 11, 12}, 0, 8, 4);
    cache({10, 11, 12, 13}, 1);
    const StepPlan step = plan();
    engine_->on_blocks_invalid(blocks_of({10, 11}));
    fold_ends(step);
    // It comes behind the failure, and its table has what failed.
    arrive("finder", {1, 2, 3, 4});
    if (first_chunk == 12) {
      schedule("finder", {10, 11, 12, 13}, 12, 4);
      fold_ends(plan());
      more("r", {}, 0, 12);
    } else {
      more("r", {}, 0, 4);
      schedule("finder", {10, 11, 12, 13}, 12, 4);
      fold_ends(plan());
      more("r", {}, 4, 8);
    }
    static_cast<void>(stored_now());
    EXPECT_EQ(num_hit({1, 2, 3, 4}), 3U) << "the first chunk has " << first_chunk << " tokens";
  }
}

TEST_F(SchedulerProofTest, WhoFoundBlocksOfALoadGoesOnWhenTheLoadIsShown) {
  arrive("r", {1, 2, 3});
  run_behind_a_load("r", {10, 11, 12}, 0, 8, 4);
  arrive("finder", {1, 2, 3, 4});
  schedule("finder", {10, 11, 12, 13}, 12, 4);
  cache({10, 11, 12, 13}, 1);
  fold_ends(plan());
  EXPECT_EQ(stored_now().size(), 4U);
}

TEST_F(SchedulerProofTest, AnAsynchronousLoadIsShownByTheEngineThatRunsItsRequest) {
  arrive("r", {1, 2, 3});
  static_cast<void>(engine_->lookup("r", 0, 13));
  static_cast<void>(plan());
  schedule("r", {10, 11, 12}, 8, 4);
  EXPECT_EQ(stored_now(), (Blocks{10, 11, 12}));
}

// The load may have begun before the reset: it brought what the reset forgets.
TEST_F(SchedulerProofTest, WhatAnotherConnectorLoadsBesideAResetIsNotStored) {
  arrive("r", {1, 2, 3});
  static_cast<void>(engine_->lookup("r", 0, 13));
  static_cast<void>(plan());
  engine_->reset_cache();
  schedule("r", {10, 11, 12}, 8, 4);
  cache({10, 11, 12}, 1);
  EXPECT_EQ(stored_now(), Blocks{});
  engine_->on_finished("r");
  arrive("finder", {1, 2, 3, 4});
  schedule("finder", {10, 11, 12, 13}, 12, 4);
  EXPECT_EQ(stored_now(), Blocks{});
}

TEST_F(SchedulerProofTest, WhatAnotherConnectorLoadsAfterAResetIsStored) {
  arrive("r", {1, 2, 3});
  static_cast<void>(engine_->lookup("r", 0, 13));
  engine_->reset_cache();
  static_cast<void>(engine_->lookup("r", 0, 13));
  static_cast<void>(plan());
  schedule("r", {10, 11, 12}, 8, 4);
  EXPECT_EQ(stored_now(), (Blocks{10, 11, 12}));
}

TEST_F(SchedulerProofTest, AStoreOfABlockThatIsReportedInvalidIsAborted) {
  arrive("r", {1, 2});
  schedule("r", {10, 11}, 0, 8);
  const StepPlan step = plan();
  EXPECT_EQ(planned_blocks(step), (Blocks{10, 11}));
  engine_->on_blocks_invalid(blocks_of({11}));
  fold_ends(step);
  EXPECT_EQ(num_hit({1, 2}), 0U);
  EXPECT_EQ(view().tier.num_free, view().tier.num_slots);
}

TEST_F(SchedulerProofTest, ARequestThatEndsInDoubtLeavesNothing) {
  arrive("r", {1, 2, 3});
  run_behind_a_load("r", {10, 11, 12}, 0, 8, 4);
  cache({10, 11, 12}, 1);
  const StepPlan step = plan();
  engine_->on_finished("r");
  fold_ends(step);
  EXPECT_EQ(stored_now(), Blocks{});
}

TEST_F(SchedulerProofTest, APreemptedRequestThatIsLookedUpInTheSamePassKeepsItsLookup) {
  arrive("r", {1, 2, 3});
  schedule("r", {20, 21, 22}, 0, 12);
  fold_ends(plan());
  engine_->reset_cache();
  static_cast<void>(engine_->lookup("r", 0, 13));
  engine_->on_preempted("r");
  schedule("r", {10, 11, 12}, 8, 4);
  const StepPlan step = plan();
  EXPECT_EQ(planned_blocks(step), Blocks{});
  cache({10, 11, 12}, 1);
  fold_ends(step);
  EXPECT_EQ(stored_now().size(), 3U);
}

class SchedulerSessionTest : public SchedulerGroupsTest {
 protected:
  static constexpr GroupId kState{1};
};

// vLLM forgets the accepted drafts of a session that goes on.
TEST_F(SchedulerSessionTest, OfALaterTurnNothingIsStoredWhereTheEngineGetsItWrong) {
  for (const LaterTurns later_turns : {LaterTurns::kStored, LaterTurns::kNotStored}) {
    later_turns_ = later_turns;
    restart_with({{}, {TokenReach::state(0)}});
    const auto hashes = arrive("r", {1});
    schedule("r", {{10, 11}, {20, 21}}, 0, 6);
    fold_ends(plan());
    hashes->append(2);
    hashes->append(3);
    schedule("r", {{10, 11, 12}, {20, 21, 22}}, 6, 6);
    engine_->on_state("r", kState, BlockId(22), 12);
    pool_.cache(22, 3, kState);
    Blocks blocks = planned_blocks(plan());
    const Blocks later = planned_blocks(plan());
    blocks.insert(blocks.end(), later.begin(), later.end());
    EXPECT_EQ(blocks, later_turns == LaterTurns::kStored ? (Blocks{22, 11, 12}) : Blocks{});
  }
}

// Its state was not proven yet when the engine took the block back, for the same request.
TEST_F(SchedulerSessionTest, AStateWhoseBlockIsWrittenAgainIsNotStored) {
  for (const GroupId again : {kState, GroupId(0)}) {
    for (const bool leaves_another : {false, true}) {
      restart_with({{}, {TokenReach::state(0)}});
      arrive("q", {1, 9});
      EXPECT_TRUE(engine_->note_local("q", 0)) << "another connector loads it";
      fold_ends(plan());
      arrive("r", {1, 2, 3, 4});
      EXPECT_TRUE(engine_->note_local("r", 4));
      schedule("r", {{10, 11}, {30, 21}}, 4, 4);
      engine_->on_state("r", kState, BlockId(21), 8);
      fold_ends(plan());
      if (again == kState) {
        schedule("r", {{12}, {21}}, 8, 4, TableUpdate::kAppend);
        if (leaves_another) engine_->on_state("r", kState, BlockId(21), 12);
      } else {
        schedule("r", {{21}, {22}}, 8, 2, TableUpdate::kAppend);
      }
      schedule("q", {{10, 15}, {30, 35}}, 4, 1);
      fold_ends(plan());
      fold_ends(plan());
      EXPECT_EQ(num_hit({1, 2, 99}), 0U) << "no state is stored at the end of block 2";
    }
  }
}

TEST_F(SchedulerSessionTest, AStateIsProvenWithTheTokensBeforeIt) {
  restart_with({{}, {TokenReach::state(0)}});
  pool_.cache(10, 1);
  pool_.cache(20, 1, kState);
  arrive("r", {1, 2});
  schedule("r", {{10, 11}, {20, 21}}, 4, 4);
  engine_->on_state("r", kState, BlockId(21), 8);
  EXPECT_EQ(planned_blocks(plan()), Blocks{});
}

}  // namespace
}  // namespace kvferry::connector
