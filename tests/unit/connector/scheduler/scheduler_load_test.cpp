// SPDX-License-Identifier: Apache-2.0
#include "kvferry/base/error.hpp"

#include "scheduler_fixture.hpp"

namespace kvferry::connector {
namespace {

/// With keys 1 to 4 in the tier.
class SchedulerLoadTest : public SchedulerTest {
 protected:
  SchedulerLoadTest() {
    register_ranks({});
    fill({1, 2, 3, 4}, 0);
  }

  /// A request of 17 tokens and keys 1 to 4 asks and gets blocks 40 to 43.
  void begin(std::string_view id) {
    arrive(id, {1, 2, 3, 4});
    ASSERT_EQ(engine_->lookup(id, 0, 17), 16U);
    engine_->on_allocated(id, blocks_of({40, 41, 42, 43}), 16);
  }
  /// begin() and the plan with its load.
  StepPlan send(std::string_view id) {
    begin(id);
    StepPlan step = plan();
    EXPECT_EQ(step.loads.size(), 1U);
    return step;
  }
  /// The load of `id` begun last holds nothing, is never sent, and fails.
  void expect_failed(const std::string& id) {
    EXPECT_EQ(view().tier.num_leased, 0U);
    EXPECT_EQ(view().hit_tokens, 0U);
    const StepPlan step = plan();
    EXPECT_TRUE(step.loads.empty());
    EXPECT_EQ(notified(step), Ids{id});
    EXPECT_EQ(fold_ends(step), Ids{id});
    EXPECT_EQ(view().failed_loads, 1U);
    EXPECT_EQ(view().num_loads_in_flight, 0U);
    EXPECT_TRUE(plan().empty());
  }
};

TEST_F(SchedulerLoadTest, LookupFindsAllThatTheRequestHas) {
  arrive("r", {1, 2, 3, 4});
  EXPECT_EQ(engine_->lookup("r", 0, 17), 16U);
  EXPECT_EQ(engine_->lookup("r", 0, 16), 16U) << "the engine steps back by the last token itself";
  EXPECT_EQ(engine_->lookup("r", 0, 15), 12U);
  EXPECT_EQ(engine_->lookup("r", 0, 1), 0U);
  EXPECT_EQ(engine_->lookup("r", 0, 0), 0U);
}

TEST_F(SchedulerLoadTest, LookupCountsBehindTheLocalTokens) {
  arrive("r", {1, 2, 3, 4});
  EXPECT_EQ(engine_->lookup("r", 8, 17), 8U);
  EXPECT_EQ(engine_->lookup("r", 16, 17), 0U);
  EXPECT_EQ(engine_->lookup("r", 20, 17), 0U);
}

TEST_F(SchedulerLoadTest, LookupEndsAtTheFirstMiss) {
  arrive("r", {1, 2, 9, 4});
  EXPECT_EQ(engine_->lookup("r", 0, 17), 8U);
  EXPECT_EQ(engine_->lookup("r", 12, 17), 4U);
}

TEST_F(SchedulerLoadTest, LookupOfAnUnknownRequestIsAMiss) {
  EXPECT_EQ(engine_->lookup("nobody", 0, 17), 0U);
  EXPECT_FALSE(engine_->knows("nobody"));
}

// vllm#44100 (the lookup's lease leaked), vllm#18485 (abort before any block was allocated).
TEST_F(SchedulerLoadTest, LookupHoldsNothingSoAnAbortBeforeAllocationLeaksNothing) {
  arrive("r", {1, 2, 3, 4});
  EXPECT_EQ(engine_->lookup("r", 0, 17), 16U);
  EXPECT_EQ(view().tier.num_leased, 0U);
  engine_->on_finished("r");
  EXPECT_EQ(view().num_requests, 0U);
  EXPECT_EQ(view().num_tombstones, 0U);
  EXPECT_TRUE(plan().empty());
  arrive("never looked up", {1});
  engine_->on_finished("never looked up");
  EXPECT_TRUE(plan().empty());
}

TEST_F(SchedulerLoadTest, AnAnswerIsKeptUntilSomethingWasEvicted) {
  arrive("r", {1, 2, 3, 4, 5});
  EXPECT_EQ(engine_->lookup("r", 0, 21), 16U);
  fill({5}, 10);
  EXPECT_EQ(engine_->lookup("r", 0, 21), 16U) << "O(1): nothing that was counted is gone";
  std::vector<std::uint64_t> many;
  for (std::uint64_t i = 0; i < 28; ++i) many.push_back(100 + i);
  fill(many, 20);  // One more than there is room for: key 4, the coldest tail, leaves.
  EXPECT_EQ(engine_->lookup("r", 0, 21), 12U);
}

TEST_F(SchedulerLoadTest, AnAnswerIsNotKeptForOtherInputs) {
  const auto hashes = arrive("r", {1, 2, 3, 4});
  EXPECT_EQ(engine_->lookup("r", 0, 17), 16U);
  EXPECT_EQ(engine_->lookup("r", 4, 17), 12U);
  EXPECT_EQ(engine_->lookup("r", 0, 17), 16U);
  hashes->assign({1, 9, 10, 11});  // A streaming session replaced its tail.
  EXPECT_EQ(engine_->lookup("r", 0, 17), 4U);
}

TEST_F(SchedulerLoadTest, ALeaseLastsFromAllocationUntilEveryRankEnded) {
  const StepPlan step = send("r");
  EXPECT_EQ(view().tier.num_leased, 4U);
  EXPECT_EQ(view().hit_tokens, 16U);
  const LoadOrder& order = step.loads[0];
  EXPECT_EQ(order.owner.domain, kDomain);
  EXPECT_EQ(block_numbers(order), (Blocks{40, 41, 42, 43}));
  EXPECT_EQ(fold({ends(kRankB, step)}), Ids{});
  EXPECT_EQ(view().tier.num_leased, 4U);
  EXPECT_EQ(fold({ends(kRankA, step)}), Ids{"r"});
  EXPECT_EQ(view().tier.num_leased, 0U);
  EXPECT_EQ(view().num_loads_in_flight, 0U);
  EXPECT_EQ(view().loaded, 4U);
}

TEST_F(SchedulerLoadTest, LoadsWhatTheEngineAskedForBehindItsLocalTokens) {
  arrive("r", {1, 2, 3, 4});
  EXPECT_EQ(engine_->lookup("r", 4, 17), 12U);
  engine_->on_allocated("r", blocks_of({40, 41, 42, 43, 44}), 8);
  const StepPlan step = plan();
  ASSERT_EQ(step.loads.size(), 1U);
  EXPECT_EQ(block_numbers(step.loads[0]), (Blocks{41, 42}));
}

TEST_F(SchedulerLoadTest, ALoadingRequestIsAMiss) {
  const StepPlan step = send("r");
  EXPECT_EQ(engine_->lookup("r", 0, 17), 0U);
  fold_ends(step);
  EXPECT_EQ(engine_->lookup("r", 0, 17), 16U);
}

// G6: an allocation that comes without a valid answer becomes a failed load, never a silent skip.
TEST_F(SchedulerLoadTest, AnAllocationWithoutAnAnswerFails) {
  arrive("r", {1, 2, 3, 4});
  engine_->on_allocated("r", blocks_of({40, 41}), 8);
  expect_failed("r");
  EXPECT_EQ(engine_->lookup("r", 0, 17), 16U) << "the tier's bytes are not in doubt";
}

TEST_F(SchedulerLoadTest, AnAllocationBeyondTheAnswerFails) {
  arrive("r", {1, 2, 9});
  EXPECT_EQ(engine_->lookup("r", 0, 13), 8U);
  engine_->on_allocated("r", blocks_of({40, 41, 42}), 12);
  expect_failed("r");
}

TEST_F(SchedulerLoadTest, AnAllocationShorterThanItsLoadFails) {
  arrive("r", {1, 2, 3, 4});
  EXPECT_EQ(engine_->lookup("r", 0, 17), 16U);
  engine_->on_allocated("r", blocks_of({40, 41}), 16);
  expect_failed("r");
}

TEST_F(SchedulerLoadTest, AnAllocationAfterTheAnswerWasEvictedFails) {
  arrive("r", {1, 2, 3, 4});
  EXPECT_EQ(engine_->lookup("r", 0, 17), 16U);
  engine_->reset_cache();
  engine_->on_allocated("r", blocks_of({40, 41, 42, 43}), 16);
  expect_failed("r");
}

TEST_F(SchedulerLoadTest, AnAllocationForAnUnknownRequestIsAProtocolError) {
  EXPECT_THROW(engine_->on_allocated("nobody", blocks_of({40}), 4), ProtocolError);
}

TEST_F(SchedulerLoadTest, ASecondAllocationWhileOneLoadsIsAProtocolErrorAndTouchesNothing) {
  const auto refused = [this] {
    EXPECT_THROW(engine_->on_allocated("r", blocks_of({50, 51, 52, 53}), 16), ProtocolError);
  };
  begin("r");
  refused();
  const StepPlan step = plan();
  ASSERT_EQ(step.loads.size(), 1U);
  EXPECT_EQ(block_numbers(step.loads[0]), (Blocks{40, 41, 42, 43}));
  refused();
  EXPECT_EQ(fold_ends(step, Outcome::kFailed), Ids{});
  refused();  // It failed, which the engine does not know yet.
  const StepPlan notice = plan();
  refused();
  EXPECT_EQ(fold_ends(notice), Ids{"r"});
  EXPECT_EQ(view().num_loads_in_flight, 0U);
  EXPECT_EQ(view().tier.num_leased, 0U);
  EXPECT_EQ(view().hit_tokens, 16U);
}

// LMCache#5032; policy `recompute` would ask for it for ever.
TEST_F(SchedulerLoadTest, WhatFailedToLoadOnOneRankIsNotOfferedAgain) {
  const StepPlan step = send("r");
  EXPECT_EQ(fold({ends(kRankA, step), ends(kRankB, step, Outcome::kFailed)}), Ids{});
  EXPECT_EQ(view().failed_loads, 1U);
  EXPECT_EQ(view().loaded, 0U);
  EXPECT_EQ(num_hit({1, 2, 3, 4}), 0U);
  EXPECT_EQ(view().tier.num_dying, 0U);
  EXPECT_EQ(view().tier.num_free, 32U);
}

TEST_F(SchedulerLoadTest, WhatFailedToLoadIsStoredAgainOnceItIsRecomputed) {
  const StepPlan step = send("r");
  fold_ends(step, Outcome::kFailed);
  EXPECT_EQ(fold_ends(plan()), Ids{"r"});
  schedule("r", {40, 41, 42, 43}, 0, 16);
  const StepPlan next = plan();
  ASSERT_EQ(next.stores.size(), 1U);
  EXPECT_EQ(block_numbers(next.stores[0].blocks), (Blocks{40, 41, 42, 43}));
  fold_ends(next);
  EXPECT_EQ(num_hit({1, 2, 3, 4}), 4U);
}

TEST_F(SchedulerLoadTest, WhatWasLoadedIsNotStoredAgain) {
  fold_ends(send("r"));
  schedule("r", {40, 41, 42, 43, 44}, 16, 1);
  EXPECT_TRUE(plan().stores.empty());
}

TEST_F(SchedulerLoadTest, ABlockThatThePoolDoesNotHaveIsRefusedAndNothingHasChanged) {
  arrive("r", {1, 2, 3, 4});
  ASSERT_EQ(engine_->lookup("r", 0, 17), 16U);
  const auto refused = [this](const Blocks& blocks) {
    EXPECT_THROW(engine_->on_allocated("r", blocks_of(blocks), 16), ProtocolError);
  };
  refused({40, 41, 42, kNumBlocks});
  refused({40, 41, 42, 0xffffffff});
  EXPECT_THROW(schedule("r", {40, kNumBlocks}, 0, 16), ProtocolError);
  EXPECT_THROW(engine_->on_blocks_invalid(blocks_of({kNumBlocks})), ProtocolError);
  EXPECT_EQ(view().tier.num_leased, 0U);
  engine_->on_allocated("r", blocks_of({40, 41, 42, kNumBlocks - 1}), 16);
  EXPECT_EQ(fold_ends(plan()), Ids{"r"});
  EXPECT_EQ(view().loaded, 4U);
}

TEST_F(SchedulerLoadTest, ALoadOfNoTokenIsRefused) {
  arrive("r", {1, 2, 3, 4});
  ASSERT_EQ(engine_->lookup("r", 0, 17), 16U);
  EXPECT_THROW(engine_->on_allocated("r", blocks_of({40, 41, 42, 43}), 0), ProtocolError);
  EXPECT_EQ(view().tier.num_leased, 0U);
}

// sglang#31427: a slot was evicted under an in-flight reader.
TEST_F(SchedulerLoadTest, LeasedSlotsAreNotEvicted) {
  const StepPlan step = send("r");
  std::vector<std::uint64_t> many;
  for (std::uint64_t i = 0; i < 40; ++i) many.push_back(100 + i);
  fill(many, 20);
  fold_ends(step);
  EXPECT_EQ(view().loaded, 4U);
  EXPECT_EQ(num_hit({1, 2, 3, 4}), 4U);
}

}  // namespace
}  // namespace kvferry::connector
