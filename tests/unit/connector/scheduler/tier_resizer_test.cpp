// SPDX-License-Identifier: Apache-2.0
// A tier that is made smaller and larger while it serves: what ranks are told, and what follows
// from what they answer.
#include "kvferry/connector/scheduler/scheduler_engine.hpp"

#include "scheduler_fixture.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace kvferry::connector {
namespace {

/// A tier of 32 slots, which are chunks, in runs of 8; of them 16 can come later.
class TierResizerTest : public SchedulerTest {
 protected:
  static constexpr std::uint32_t kRun = 8;
  using Runs = std::vector<std::pair<std::uint32_t, ChunkChange>>;

  TierResizerTest() { begin(); }

  void begin(std::uint32_t run_a = kRun, std::uint32_t run_b = kRun) {
    restart(48);
    StepReport a = topology_report(kRankA, {.num_slots = 32, .max_slots = 48});
    StepReport b = topology_report(kRankB, {.num_slots = 32, .max_slots = 48});
    a.topology->chunks_per_piece = run_a;
    b.topology->chunks_per_piece = run_b;
    a.topology->first_chunks = b.topology->first_chunks = 32;
    fold({a, b});
  }
  static Runs runs(const StepPlan& plan) {
    Runs all;
    for (const ChunkOrder& order : plan.chunks) {
      EXPECT_EQ(order.count, kRun);
      all.emplace_back(order.first.value(), order.change);
    }
    return all;
  }
  /// A rank ends the orders of a plan.
  void answer(RankId rank, const StepPlan& plan, const std::string& failure = "") {
    StepReport report = report_of(rank);
    for (const ChunkOrder& order : plan.chunks) report.chunks.push_back({order, failure});
    fold({report});
  }
  void answer_all(const StepPlan& plan) {
    answer(kRankA, plan);
    answer(kRankB, plan);
  }
  /// Plans and answers until nothing is left to do.
  void settle() {
    for (int step = 0; step < 50 && engine_->tier_size().is_at_work; ++step) answer_all(plan());
    EXPECT_FALSE(engine_->tier_size().is_at_work);
  }
  [[nodiscard]] TierSize size() const { return engine_->tier_size(); }
};

TEST_F(TierResizerTest, NothingIsOrderedUnlessSomebodyAsks) {
  EXPECT_TRUE(plan().chunks.empty());
  EXPECT_EQ(size().num_chunks, 32U);
  EXPECT_EQ(size().target_chunks, 32U);
  EXPECT_EQ(size().max_chunks, 48U);
  EXPECT_FALSE(size().is_at_work);
}

TEST_F(TierResizerTest, AChunkIsTheMachinesOnlyWhenEveryRankHasAnswered) {
  fill({1, 2, 3, 4, 5, 6, 7, 8}, 0);
  engine_->resize(16);
  EXPECT_TRUE(size().is_at_work);
  const StepPlan told = plan();
  EXPECT_EQ(runs(told), (Runs{{24, ChunkChange::kRetire}, {16, ChunkChange::kRetire}}));
  EXPECT_EQ(engine_->num_slots(), 16U);
  EXPECT_EQ(engine_->max_slots(), 16U);
  EXPECT_EQ(view().tier.num_slots, 16U);
  EXPECT_EQ(size().num_retiring, 16U);
  answer(kRankA, told);
  EXPECT_EQ(size().silent_ranks, std::vector<RankId>{kRankB});
  engine_->resize(48);
  const StepPlan others = plan();
  EXPECT_EQ(runs(others), (Runs{{32, ChunkChange::kRestore}, {40, ChunkChange::kRestore}}))
      << "the other two are not given back on every rank yet";
  answer(kRankB, told);
  EXPECT_EQ(runs(plan()), (Runs{{16, ChunkChange::kRestore}, {24, ChunkChange::kRestore}}));
  EXPECT_EQ(num_hit({1, 2, 3, 4, 5, 6, 7, 8}), 8U);
}

TEST_F(TierResizerTest, AChunkIsUsedAgainOnlyWhenEveryRankHasIt) {
  engine_->resize(24);
  answer_all(plan());
  engine_->resize(32);
  const StepPlan told = plan();
  EXPECT_EQ(runs(told), (Runs{{24, ChunkChange::kRestore}}));
  answer(kRankB, told);
  EXPECT_EQ(view().tier.num_slots, 24U);
  EXPECT_EQ(size().num_restoring, kRun);
  answer(kRankA, told);
  EXPECT_EQ(view().tier.num_slots, 32U);
  EXPECT_FALSE(size().is_at_work);
}

TEST_F(TierResizerTest, GrowsBeyondWhereItBeganAndNoFarther) {
  engine_->resize(1000);
  EXPECT_EQ(size().target_chunks, 48U);
  settle();
  EXPECT_EQ(engine_->num_slots(), 48U);
  engine_->resize(0);
  settle();
  EXPECT_EQ(engine_->num_slots(), kRun) << "one run stays";
}

TEST_F(TierResizerTest, ATargetBetweenTwoRunsIsNotPassed) {
  engine_->resize(30);
  settle();
  EXPECT_EQ(engine_->num_slots(), 24U);
  engine_->resize(31);
  settle();
  EXPECT_EQ(engine_->num_slots(), 24U);
}

TEST_F(TierResizerTest, BlocksLeaveColdestFirstAndTheOthersAreFound) {
  fill({1, 2, 3, 4, 5, 6, 7, 8}, 0);
  fill({11, 12, 13, 14, 15, 16, 17, 18}, 8);
  fill({21, 22, 23, 24, 25, 26, 27, 28}, 16);
  fill({31, 32, 33, 34, 35, 36, 37, 38}, 24);
  EXPECT_EQ(num_hit({1, 2, 3, 4, 5, 6, 7, 8}), 8U);
  engine_->resize(16);
  EXPECT_EQ(runs(plan()), (Runs{{0, ChunkChange::kRetire}, {8, ChunkChange::kRetire}}));
  EXPECT_EQ(num_hit({1, 2, 3}), 0U);
  EXPECT_EQ(num_hit({11, 12, 13}), 0U);
  EXPECT_EQ(num_hit({21, 22, 23, 24, 25, 26, 27, 28}), 8U);
  EXPECT_EQ(num_hit({31, 32, 33, 34, 35, 36, 37, 38}), 8U);
}

// G6: what a plan names is in use on every rank until that rank's report says otherwise.
TEST_F(TierResizerTest, WhatAStoreFillsOrALoadReadsStaysUntilItHasEnded) {
  fill({1, 2, 3, 4, 5, 6, 7, 8}, 0);
  fill({11, 12, 13, 14, 15, 16, 17, 18}, 8);
  arrive("loads", {1, 2});
  ASSERT_EQ(engine_->lookup("loads", 0, 9), 8U);
  engine_->on_allocated("loads", blocks_of({40, 41}), 8);
  arrive("stores", {51});
  schedule("stores", {42}, 0, kBlockTokens);
  engine_->resize(kRun);
  const StepPlan told = plan();
  ASSERT_EQ(told.loads.size(), 1U);
  ASSERT_EQ(told.stores.size(), 1U);
  EXPECT_EQ(runs(told), (Runs{{24, ChunkChange::kRetire}, {8, ChunkChange::kRetire}}))
      << "the load has the first, the store the third";
  EXPECT_EQ(size().num_chunks, 16U);
  EXPECT_TRUE(size().is_blocked);
  EXPECT_EQ(num_hit({1, 2, 3, 4, 5, 6, 7, 8}), 8U);
  answer_all(told);
  EXPECT_FALSE(size().is_at_work) << "it waits for the transfers alone";
  fold({ends(kRankA, told)});
  EXPECT_TRUE(plan().chunks.empty()) << "the other rank may still copy";
  fold({ends(kRankB, told)});
  schedule("loads", {40, 41, 43}, 8, 1);
  const StepPlan later = plan();
  ASSERT_EQ(later.chunks.size(), 1U);
  EXPECT_EQ(size().num_chunks, kRun);
  EXPECT_FALSE(size().is_blocked);
  // Whichever went, it was whole.
  const std::uint32_t num_left = num_hit({1, 2, 3, 4, 5, 6, 7, 8});
  EXPECT_EQ(num_left + 8 * num_hit({51}), 8U);
}

TEST_F(TierResizerTest, ALoadOfWhatWentWithItsChunkFailsAndIsNotSkipped) {
  fill({1, 2, 3, 4, 5, 6, 7, 8}, 0);
  arrive("a", {1, 2});
  ASSERT_EQ(engine_->lookup("a", 0, 9), 8U);
  engine_->resize(kRun);
  // The step ends without an allocation.
  answer_all(plan());
  settle();
  if (num_hit({1, 2}) == 0) {
    EXPECT_EQ(engine_->lookup("a", 0, 9), 0U);
  }
  EXPECT_EQ(view().tier.num_slots, kRun);
}

TEST_F(TierResizerTest, WhatOneRankCannotHaveTheOthersGiveBack) {
  engine_->resize(48);
  const StepPlan told = plan();
  EXPECT_EQ(runs(told), (Runs{{32, ChunkChange::kRestore}, {40, ChunkChange::kRestore}}));
  answer(kRankA, told);
  answer(kRankB, told, "no memory");
  EXPECT_EQ(engine_->num_slots(), 32U);
  EXPECT_EQ(size().failure, "rank 1: no memory");
  const StepPlan back = plan();
  EXPECT_EQ(runs(back), (Runs{{32, ChunkChange::kRetire}, {40, ChunkChange::kRetire}}));
  answer_all(back);
  EXPECT_FALSE(size().is_at_work) << "it is not tried for ever";
  EXPECT_TRUE(plan().chunks.empty());
  engine_->resize(48);
  EXPECT_EQ(size().failure, "");
  settle();
  EXPECT_EQ(engine_->num_slots(), 48U);
}

TEST_F(TierResizerTest, OfTwoRestoredRunsOneMayFail) {
  engine_->resize(48);
  const StepPlan told = plan();
  StepReport report = report_of(kRankA);
  report.chunks = {{told.chunks.at(0), "no memory"}, {told.chunks.at(1), ""}};
  fold({report});
  answer(kRankB, told);
  EXPECT_EQ(engine_->num_slots(), 40U);
  settle();
  EXPECT_EQ(engine_->num_slots(), 40U);
}

// The failure of what was ordered for an earlier target.
TEST_F(TierResizerTest, AGrowthThatFailsDoesNotUndoWhatWasAskedSince) {
  for (const std::uint32_t asked : {8U, 24U, 48U}) {
    begin();
    engine_->resize(48);
    const StepPlan up = plan();
    engine_->resize(asked);
    answer(kRankA, up);
    answer(kRankB, up, "no memory");
    settle();
    EXPECT_EQ(size().num_chunks, asked);
    EXPECT_EQ(size().failure, "");
  }
}

TEST_F(TierResizerTest, AnAnswerThatNobodyWaitsForIsCountedAndDropped) {
  engine_->resize(24);
  const StepPlan told = plan();
  answer(kRankA, told);
  const std::uint64_t before = view().stale_reports;
  answer(kRankA, told);
  StepReport other = report_of(kRankB);
  other.chunks = {{{ChunkId(0), kRun, ChunkChange::kRetire}, ""},
                  {{told.chunks.at(0).first, kRun, ChunkChange::kRestore}, ""}};
  fold({other});
  EXPECT_EQ(view().stale_reports, before + 3);
  EXPECT_EQ(size().num_retiring, kRun);
  answer(kRankB, told);
  EXPECT_EQ(size().num_retiring, 0U);
}

TEST_F(TierResizerTest, ATargetThatChangesOnTheWayIsMet) {
  engine_->resize(kRun);
  const StepPlan down = plan();
  EXPECT_EQ(runs(down).size(), 3U);
  engine_->resize(48);
  const StepPlan up = plan();
  EXPECT_EQ(runs(up), (Runs{{32, ChunkChange::kRestore}, {40, ChunkChange::kRestore}}));
  engine_->resize(16);
  answer_all(down);
  answer_all(up);
  settle();
  EXPECT_EQ(engine_->num_slots(), 16U);
}

TEST_F(TierResizerTest, AResetInBetweenChangesNothingOfTheSize) {
  fill({1, 2, 3}, 0);
  engine_->resize(16);
  const StepPlan told = plan();
  engine_->reset_cache();
  answer_all(told);
  settle();
  EXPECT_EQ(view().tier.num_slots, 16U);
  EXPECT_EQ(view().tier.num_free, 16U);
}

TEST_F(TierResizerTest, AskedBeforeTheRanksAreThereItIsDoneWhenTheyAre) {
  restart(48);
  engine_->resize(16);
  EXPECT_TRUE(plan().chunks.empty());
  StepReport a = topology_report(kRankA, {.num_slots = 32, .max_slots = 48});
  StepReport b = topology_report(kRankB, {.num_slots = 32, .max_slots = 48});
  a.topology->chunks_per_piece = b.topology->chunks_per_piece = kRun;
  a.topology->first_chunks = b.topology->first_chunks = 32;
  fold({a, b});
  EXPECT_EQ(runs(plan()).size(), 2U);
}

TEST_F(TierResizerTest, WhatIsStillToBecomeReadyIsNotRestoredByOrder) {
  restart(48);
  StepReport a = topology_report(kRankA, {.num_slots = 16, .max_slots = 48});
  StepReport b = topology_report(kRankB, {.num_slots = 20, .max_slots = 48});
  a.topology->chunks_per_piece = b.topology->chunks_per_piece = kRun;
  a.topology->first_chunks = b.topology->first_chunks = 32;
  fold({a, b});
  engine_->resize(48);
  EXPECT_TRUE(plan().chunks.empty());
  engine_->resize(8);
  const StepPlan told = plan();
  EXPECT_EQ(runs(told), (Runs{{8, ChunkChange::kRetire}}));
  answer_all(told);
  // The ranks' own growth goes on, and what comes too much is given back.
  for (const RankId rank : {kRankA, kRankB}) {
    StepReport more = report_of(rank);
    more.num_ready_chunks = 32;
    fold({more});
  }
  EXPECT_EQ(engine_->num_slots(), 24U);
  settle();
  EXPECT_EQ(engine_->num_slots(), 8U);
  engine_->resize(48);
  settle();
  EXPECT_EQ(engine_->num_slots(), 48U);
}

TEST_F(TierResizerTest, PiecesOfDifferentSizesGoTogetherInLongRuns) {
  begin(2, 3);
  EXPECT_EQ(size().chunks_per_run, 24U);
  // 8 of the first 32 are no run: they come by an order, with the rest.
  EXPECT_EQ(engine_->num_slots(), 24U);
  engine_->resize(48);
  EXPECT_EQ(plan().chunks.size(), 1U);
}

TEST_F(TierResizerTest, NothingChangesWhereARanksMemoryStays) {
  begin(kRun, 0);
  engine_->resize(8);
  EXPECT_TRUE(plan().chunks.empty());
  EXPECT_EQ(size().chunks_per_run, 0U);
  EXPECT_EQ(size().max_chunks, 32U);
  EXPECT_FALSE(size().is_at_work);
  EXPECT_EQ(engine_->max_slots(), 32U);
}

}  // namespace
}  // namespace kvferry::connector
