// SPDX-License-Identifier: Apache-2.0
// A model whose weights change: each version finds its own blocks, and no other one's.
#include "scheduler_fixture.hpp"

#include <cstring>
#include <utility>

namespace kvferry::connector {
namespace {

constexpr WeightsId kA{0x123456789abcdef1};
constexpr WeightsId kB{0x1f2e3d4c5b6a7988};

class SchedulerWeightsTest : public SchedulerTest {
 protected:
  SchedulerWeightsTest() {
    register_ranks({});
    change(kA);
  }

  void change(WeightsId to, OldBlocks old_blocks = OldBlocks::kKept) {
    engine_->change_weights(to, old_blocks);
  }
  [[nodiscard]] std::uint32_t num_readable() const { return view().tier.num_evictable; }
};

TEST_F(SchedulerWeightsTest, EachVersionFindsItsOwnBlocksAndNoOtherOnes) {
  fill({1, 2, 3}, 10);
  EXPECT_EQ(num_hit({1, 2, 3}), 3U);
  change(kB);
  EXPECT_EQ(num_hit({1, 2, 3}), 0U);
  fill({1, 2}, 20);
  EXPECT_EQ(num_hit({1, 2, 3}), 2U) << "B's";
  EXPECT_EQ(num_readable(), 5U) << "the same tokens, once for each version";
  change(kA);
  EXPECT_EQ(num_hit({1, 2, 3}), 3U);
  change(WeightsId());
  EXPECT_EQ(num_hit({1, 2, 3}), 0U) << "before anybody named some";
  change(kB);
  EXPECT_EQ(num_hit({1, 2, 3}), 2U);
}

TEST_F(SchedulerWeightsTest, AWaitingRequestFindsWhatTheNewVersionHas) {
  fill({1, 2, 3}, 10);
  change(kB);
  fill({1}, 20);
  change(kA);
  arrive("r", {1, 2, 3, 4});
  EXPECT_EQ(engine_->lookup("r", 0, 17), 12U);
  change(kB);
  EXPECT_EQ(engine_->lookup("r", 0, 17), 4U);
  change(kA);
  EXPECT_EQ(engine_->lookup("r", 0, 17), 12U);
}

TEST_F(SchedulerWeightsTest, WhatAnAnswerOfTheOldVersionIsAllocatedForFails) {
  fill({1, 2}, 10);
  arrive("r", {1, 2, 3});
  EXPECT_EQ(engine_->lookup("r", 0, 13), 8U);
  change(kB);
  engine_->on_allocated("r", blocks_of({40, 41}), 8);
  const StepPlan step = plan();
  EXPECT_TRUE(step.loads.empty());
  EXPECT_EQ(notified(step), Ids{"r"});
}

TEST_F(SchedulerWeightsTest, AStoreInFlightIsFoundUnderTheWeightsThatComputedIt) {
  arrive("r", {7, 8});
  schedule("r", {50, 51}, 0, 8);
  const StepPlan step = plan();
  change(kB);
  EXPECT_TRUE(plan().cancels.empty());
  fold_ends(step);
  EXPECT_EQ(num_hit({7, 8}), 0U);
  engine_->on_finished("r");
  change(kA);
  EXPECT_EQ(num_hit({7, 8}), 2U);
}

TEST_F(SchedulerWeightsTest, WhatARankSkippedOfItIsStoredUnderNoWeights) {
  arrive("r", {7, 8});
  schedule("r", {50, 51}, 0, 8);
  pool_.cache(50, 7);
  pool_.cache(51, 8);
  const StepPlan step = plan();
  change(kB);
  for (const RankId rank : {kRankA, kRankB}) {
    StepReport report = report_of(rank);
    report.gathered.push_back({step.stores[0].transfer, 0});
    fold({report});
  }
  EXPECT_TRUE(planned_in_two().empty());
  EXPECT_EQ(num_hit({7, 8}), 0U);
}

TEST_F(SchedulerWeightsTest, LoadsInFlightFailAndKeepTheirSlotsUntilTheyEnd) {
  fill({1, 2}, 10);
  arrive("r", {1, 2, 3});
  EXPECT_EQ(engine_->lookup("r", 0, 13), 8U);
  engine_->on_allocated("r", blocks_of({40, 41}), 8);
  const StepPlan step = plan();
  ASSERT_EQ(step.loads.size(), 1U);
  change(kB);
  EXPECT_EQ(view().tier.num_leased, 2U);
  const StepPlan next = plan();
  ASSERT_EQ(next.cancels.size(), 1U);
  EXPECT_EQ(fold_ends(step), Ids{}) << "done, and not of these weights";
  EXPECT_EQ(fold_ends(plan()), Ids{"r"});
  EXPECT_EQ(view().failed_loads, 1U);
  change(kA);
  EXPECT_EQ(num_hit({1, 2}), 2U) << "nothing is wrong with the blocks";
}

TEST_F(SchedulerWeightsTest, ARunningRequestIsNotStoredUntilItIsComputedAnew) {
  arrive("r", {7, 8, 9});
  schedule("r", {50}, 0, 4);
  fold_ends(plan());
  change(kB);
  engine_->on_scheduled("r", TableUpdate::kAppend, blocks_of({51, 52}), 4, 8);
  EXPECT_TRUE(plan().stores.empty()) << "the new blocks were computed on the old ones";
  engine_->on_preempted("r");
  schedule("r", {60, 61, 62}, 0, 12);
  const StepPlan step = plan();
  EXPECT_EQ(block_numbers(step.stores.at(0).blocks), (Blocks{60, 61, 62}));
  fold_ends(step);
  EXPECT_EQ(num_hit({7, 8, 9}), 3U);
}

// Another connector's load of the old weights' blocks, beside a pause that keeps its request.
TEST_F(SchedulerWeightsTest, WhatAnotherConnectorLoadedOfTheOldWeightsIsNotStored) {
  arrive("r", {7, 8, 9});
  EXPECT_EQ(engine_->lookup("r", 0, 13), 0U);
  fold_ends(plan());
  change(kB);
  fold_ends(plan());
  schedule("r", {50, 51, 52}, 11, 1);
  EXPECT_TRUE(planned_in_two().empty());
  EXPECT_EQ(view().num_backlog, 0U);
}

// A pause that keeps the engine's own cache (vLLM's `clear_cache=False`).
TEST_F(SchedulerWeightsTest, WhatIsComputedOnBlocksThatTheEngineKeptOfTheOldWeightsIsNotStored) {
  arrive("r", {7, 8});
  schedule("r", {50, 51}, 0, 8);
  pool_.cache(50, 7);
  pool_.cache(51, 8);
  fold_ends(plan());
  engine_->on_finished("r");
  change(kB);
  arrive("s", {7, 8, 9});
  EXPECT_EQ(engine_->lookup("s", 8, 13), 0U);
  schedule("s", {50, 51, 52}, 8, 4);
  pool_.cache(52, 9);
  EXPECT_TRUE(planned_in_two().empty());
  engine_->on_finished("s");
  arrive("t", {7, 8, 9, 10});
  schedule("t", {50, 51, 52, 53}, 12, 4);
  EXPECT_TRUE(planned_in_two().empty());
  EXPECT_EQ(view().num_backlog, 0U);
}

TEST_F(SchedulerWeightsTest, BlocksInTheBacklogAreNotStored) {
  arrive("r", {7, 8});
  schedule("r", {50, 51}, 0, 8);
  pool_.cache(50, 7);
  pool_.cache(51, 8);
  const StepPlan step = plan();
  StepReport report = report_of(kRankA);
  report.gathered.push_back({step.stores[0].transfer, 0});
  fold({report});
  report.rank = kRankB;
  fold({report});
  EXPECT_EQ(view().num_backlog, 2U);
  change(kB);
  EXPECT_EQ(view().num_backlog, 0U);
  EXPECT_TRUE(planned_in_two().empty());
}

TEST_F(SchedulerWeightsTest, ForgottenOnesLeaveTheTierAndTheOthersStay) {
  fill({1, 2}, 10);
  arrive("of A", {8});
  schedule("of A", {30}, 0, 4);
  const StepPlan of_a = plan();
  engine_->on_finished("of A");
  change(kB);
  fill({1, 2, 3}, 20);
  arrive("r", {7});
  schedule("r", {50}, 0, 4);
  const StepPlan step = plan();
  change(kA, OldBlocks::kForgotten);
  EXPECT_EQ(num_readable(), 2U);
  EXPECT_EQ(num_hit({1, 2, 3}), 2U);
  const StepPlan next = plan();
  ASSERT_EQ(next.cancels.size(), 1U);
  EXPECT_EQ(next.cancels[0], step.stores[0].transfer);
  fold_ends(of_a);
  fold_ends(step);
  engine_->on_finished("r");
  EXPECT_EQ(num_hit({8}), 1U);
  change(kB);
  EXPECT_EQ(num_hit({1}), 0U);
  EXPECT_EQ(num_hit({7}), 0U);
}

TEST_F(SchedulerWeightsTest, TheSameOnesChangeNothing) {
  fill({1, 2}, 10);
  arrive("r", {7, 8});
  schedule("r", {50}, 0, 4);
  fold_ends(plan());
  change(kA, OldBlocks::kForgotten);
  EXPECT_EQ(num_hit({1, 2}), 2U);
  engine_->on_scheduled("r", TableUpdate::kAppend, blocks_of({51}), 4, 4);
  EXPECT_EQ(plan().stores.size(), 1U);
}

TEST_F(SchedulerWeightsTest, AResetForgetsAllVersions) {
  fill({1, 2}, 10);
  change(kB);
  engine_->reset_cache();
  change(kA);
  EXPECT_EQ(num_hit({1, 2}), 0U);
  EXPECT_EQ(num_readable(), 0U);
}

TEST_F(SchedulerWeightsTest, KeyEventsTellWhatTheWeightsOfNowHave) {
  tier_options_.key_events = true;
  restart();
  register_ranks({});
  const auto events = [this] {
    std::vector<std::pair<bool, bool>> found;
    for (const cpu_tier::KeyEvent& event : engine_->take_key_events()) {
      const bool is_first = event.key == key_of(1);
      EXPECT_TRUE(is_first || event.key == key_of(2)) << "as the engine has it";
      found.emplace_back(event.readable, is_first);
    }
    std::sort(found.begin(), found.end());
    return found;
  };
  using Events = std::vector<std::pair<bool, bool>>;
  change(kA);
  EXPECT_EQ(events(), Events{});
  fill({1}, 10);
  EXPECT_EQ(events(), (Events{{true, true}}));
  arrive("late", {2});
  schedule("late", {30}, 0, 4);
  const StepPlan late = plan();
  change(kB);
  EXPECT_EQ(events(), (Events{{false, true}}));
  fold_ends(late);
  EXPECT_EQ(events(), Events{}) << "A's";
  engine_->on_finished("late");
  fill({2}, 20);
  EXPECT_EQ(events(), (Events{{true, false}}));
  change(kA);
  EXPECT_EQ(events(), (Events{{false, false}, {true, false}, {true, true}}));
}

}  // namespace
}  // namespace kvferry::connector
