// SPDX-License-Identifier: Apache-2.0
// What a request wants loaded and stored at most, and an engine that stores prompts only.
#include "scheduler_groups_fixture.hpp"

#include <memory>
#include <string_view>

namespace kvferry::connector {
namespace {

constexpr std::uint32_t kNone = RequestLimits::kNone;
constexpr RequestLimits kStoreNothing{kNone, 0};

RequestLimits load_at_most(std::uint32_t tokens) { return {tokens, kNone}; }
RequestLimits store_at_most(std::uint32_t tokens) { return {kNone, tokens}; }

class SchedulerLimitsTest : public SchedulerTest {
 protected:
  SchedulerLimitsTest() { register_ranks({}); }

  void schedule(std::string_view id, const Blocks& table, const StepTokens& tokens,
                TableUpdate update = TableUpdate::kReplace) {
    const std::vector<BlockId> blocks = blocks_of(table);
    const std::span<const BlockId> span(blocks);
    engine_->on_scheduled(id, update, {&span, 1}, tokens);
  }
};

// ---- stores ----

TEST_F(SchedulerLimitsTest, ARequestStoresTheBlocksThatEndWithinItsLimit) {
  arrive("r", {1, 2, 3, 4}, store_at_most(11));
  schedule("r", {10, 11, 12, 13}, {0, 16});
  EXPECT_EQ(planned_blocks(plan()), (Blocks{10, 11}));
  engine_->on_finished("r", 17);
  EXPECT_EQ(view().num_backlog, 0U);
  EXPECT_EQ(planned_blocks(plan()), Blocks());
}

TEST_F(SchedulerLimitsTest, ALimitHoldsInEachStepOfARequest) {
  auto hashes = arrive("r", {1, 2}, store_at_most(12));
  schedule("r", {10, 11}, {0, 8});
  EXPECT_EQ(planned_blocks(plan()), (Blocks{10, 11}));
  for (std::uint32_t i = 2; i < 5; ++i) {
    hashes->append(i + 1);
    schedule("r", {10 + i}, {i * 4, 4}, TableUpdate::kAppend);
    EXPECT_EQ(planned_blocks(plan()), i == 2 ? Blocks{12} : Blocks()) << i;
  }
}

TEST_F(SchedulerLimitsTest, ALimitHoldsAfterAPreemption) {
  arrive("r", {1, 2, 3}, store_at_most(4));
  schedule("r", {10, 11, 12}, {0, 12});
  EXPECT_EQ(planned_blocks(plan()), Blocks{10});
  engine_->reset_cache();
  engine_->on_preempted("r");
  schedule("r", {20, 21, 22}, {0, 12});
  EXPECT_EQ(planned_blocks(plan()), Blocks{20});
}

TEST_F(SchedulerLimitsTest, WhatARequestDoesNotWantStoredIsNoOffer) {
  tier_options_ = {cpu_tier::Eviction::kLru, cpu_tier::Admission::kSecondOffer, 0};
  restart();
  register_ranks({.num_slots = 2});
  fill({1, 2}, 0);
  arrive("r", {5, 6}, kStoreNothing);
  schedule("r", {20, 21}, {0, 8});
  EXPECT_EQ(planned_blocks(plan()), Blocks());
  engine_->on_finished("r", 9);
  EXPECT_EQ(view().skipped_declined, 0U);
  EXPECT_EQ(view().skipped_unwanted, 2U);
  fill({5, 6}, 30);
  EXPECT_EQ(view().skipped_declined, 2U) << "this was the first offer";
}

TEST_F(SchedulerLimitsTest, WhatTheTierHasIsNotCountedAsUnwanted) {
  fill({1, 2}, 0);
  arrive("r", {1, 2, 3}, kStoreNothing);
  schedule("r", {20, 21, 22}, {0, 12});
  static_cast<void>(plan());
  engine_->on_finished("r", 13);
  EXPECT_EQ(view().skipped_unwanted, 1U);
}

TEST_F(SchedulerLimitsTest, WhatARequestDoesNotWantStoredDoesNotWaitForRoom) {
  restart();  // No rank has a slot yet.
  arrive("some", {1, 2, 3, 4, 5}, store_at_most(8));
  schedule("some", {10, 11, 12, 13, 14}, {0, 20});
  static_cast<void>(plan());
  EXPECT_EQ(view().num_backlog, 2U);
  arrive("none", {11, 12, 13}, kStoreNothing);
  schedule("none", {20, 21, 22}, {0, 12});
  static_cast<void>(plan());
  EXPECT_EQ(view().num_backlog, 2U);
}

TEST_F(SchedulerLimitsTest, ABlockThatIsWrittenLeavesTheBacklogEvenIfItsNewContentIsNotWanted) {
  restart();
  arrive("r", {1, 2, 3});
  schedule("r", {10, 11, 12}, {0, 12});
  static_cast<void>(plan());
  engine_->on_finished("r", 13);
  EXPECT_EQ(view().num_backlog, 3U);
  arrive("none", {7, 8}, kStoreNothing);
  schedule("none", {11, 12}, {0, 8});
  EXPECT_EQ(view().num_backlog, 1U);
}

TEST_F(SchedulerLimitsTest, AnotherRequestStoresWhatTheFirstDidNotWantStored) {
  arrive("r", {1, 2}, kStoreNothing);
  schedule("r", {10, 11}, {0, 8});
  EXPECT_EQ(planned_blocks(plan()), Blocks());
  pool_.cache(10, 1);
  pool_.cache(11, 2);
  engine_->on_finished("r", 9);
  arrive("s", {1, 2, 3});
  schedule("s", {10, 11, 12}, {8, 4});
  EXPECT_EQ(planned_in_two(), (Blocks{10, 11, 12}));
}

// ---- prompts ----

class SchedulerPromptTest : public SchedulerLimitsTest {
 protected:
  SchedulerPromptTest() {
    stored_part_ = StoredPart::kPrompt;
    restart();
    register_ranks({});
  }
};

TEST_F(SchedulerPromptTest, TheBlockWithTheLastOfThePromptAndDecodedTokensIsNotStored) {
  auto hashes = arrive("r", {1, 2});
  schedule("r", {10, 11, 12}, {0, 10, 0, 10});
  EXPECT_EQ(planned_blocks(plan()), (Blocks{10, 11}));
  hashes->append(3);
  for (std::uint32_t i = 10; i < 13; ++i) {
    schedule("r", {}, {i, 1}, TableUpdate::kAppend);
    EXPECT_EQ(planned_blocks(plan()), Blocks());
  }
  engine_->on_finished("r", 14);
  EXPECT_EQ(view().num_backlog, 0U);
}

TEST_F(SchedulerPromptTest, TheLowerLimitCounts) {
  arrive("less", {1, 2, 3}, store_at_most(4));
  schedule("less", {10, 11, 12}, {0, 12, 0, 12});
  EXPECT_EQ(planned_blocks(plan()), Blocks{10});
  arrive("more", {4, 5, 6}, store_at_most(12));
  schedule("more", {20, 21, 22}, {0, 12, 0, 8});
  EXPECT_EQ(planned_blocks(plan()), (Blocks{20, 21}));
}

TEST_F(SchedulerPromptTest, AResumedRequestsDecodedTokensAreNoPrompt) {
  arrive("r", {1, 2, 3});
  schedule("r", {10, 11}, {0, 8, 0, 8});
  fold_ends(plan());
  engine_->on_preempted("r");
  schedule("r", {20, 21, 22}, {0, 12});
  EXPECT_EQ(planned_blocks(plan()), Blocks());
  EXPECT_EQ(view().num_backlog, 0U);
}

TEST_F(SchedulerPromptTest, WhatASessionSaidIsPartOfItsNextTurnsPrompt) {
  auto hashes = arrive("r", {1});
  schedule("r", {10, 11}, {0, 4, 0, 4});
  EXPECT_EQ(planned_blocks(plan()), Blocks{10});
  hashes->append(2);
  schedule("r", {}, {4, 4}, TableUpdate::kAppend);
  EXPECT_EQ(planned_blocks(plan()), Blocks());
  pool_.cache(11, 2);
  hashes->append(3);
  schedule("r", {10, 11, 12}, {8, 4, 0, 12});
  EXPECT_EQ(planned_in_two(), (Blocks{11, 12}));
}

TEST_F(SchedulerPromptTest, WithoutThePromptsLengthAllIsStored) {
  arrive("r", {1, 2});
  schedule("r", {10, 11}, {0, 8});
  EXPECT_EQ(planned_blocks(plan()), (Blocks{10, 11}));
}

// ---- loads ----

TEST_F(SchedulerLimitsTest, ALoadBringsNoMoreThanTheRequestWants) {
  fill({1, 2, 3, 4}, 0);
  arrive("r", {1, 2, 3, 4}, load_at_most(11));
  EXPECT_EQ(engine_->lookup("r", 0, 17), 8U);
  engine_->on_allocated("r", blocks_of({40, 41}), 8);
  const StepPlan step = plan();
  ASSERT_EQ(step.loads.size(), 1U);
  EXPECT_EQ(block_numbers(step.loads[0]), (Blocks{40, 41}));
  EXPECT_EQ(fold_ends(step), Ids{"r"});
}

TEST_F(SchedulerLimitsTest, WhatTheEngineHasItselfIsNotLoadedAndDoesNotCount) {
  fill({1, 2, 3, 4}, 0);
  arrive("r", {1, 2, 3, 4}, load_at_most(8));
  EXPECT_EQ(engine_->lookup("r", 4, 17), 8U);
  EXPECT_EQ(engine_->lookup("r", 12, 17), 4U);
  EXPECT_EQ(engine_->lookup("r", 16, 17), 0U);
}

TEST_F(SchedulerLimitsTest, LessThanABlockIsNothing) {
  fill({1, 2}, 0);
  arrive("r", {1, 2}, load_at_most(3));
  EXPECT_EQ(engine_->lookup("r", 0, 9), 0U);
  arrive("none", {1, 2}, load_at_most(0));
  EXPECT_EQ(engine_->lookup("none", 0, 9), 0U);
}

TEST_F(SchedulerLimitsTest, ALimitBeyondThePromptLoadsAsWithout) {
  fill({1, 2}, 0);
  arrive("r", {1, 2}, load_at_most(kNone - 1));
  EXPECT_EQ(engine_->lookup("r", 0, 8), 8U);
  EXPECT_EQ(engine_->lookup("r", 4, 8), 4U);
}

TEST_F(SchedulerLimitsTest, NoMoreIsKeptForARequestsTurnThanItMayLoad) {
  tier_options_ = {cpu_tier::Eviction::kLru, cpu_tier::Admission::kAlways, 0.5F};
  restart();
  register_ranks({});
  fill({1, 2, 3, 4}, 0);
  arrive("none", {1, 2, 3, 4}, load_at_most(0));
  EXPECT_EQ(view().tier.num_awaited, 0U);
  arrive("some", {1, 2, 3, 4}, load_at_most(8));
  EXPECT_EQ(view().tier.num_awaited, 2U);
  arrive("all", {1, 2, 3, 4});
  EXPECT_EQ(view().tier.num_awaited, 4U);
}

TEST_F(SchedulerLimitsTest, ARequestThatLoadsNothingWaitsForNoOthersLoad) {
  max_load_wait_ = std::chrono::seconds(1);
  restart();
  register_ranks({});
  fill({1, 2, 3, 4}, 0);
  arrive("loader", {1, 2, 3, 4});
  EXPECT_EQ(engine_->lookup("loader", 0, 17), 16U);
  engine_->on_allocated("loader", blocks_of({40, 41, 42, 43}), 16);
  ASSERT_EQ(plan().loads.size(), 1U);
  arrive("none", {1, 2, 3, 4}, load_at_most(0));
  EXPECT_EQ(engine_->lookup("none", 0, 17), 0U);
  arrive("some", {1, 2, 3, 4}, load_at_most(8));
  EXPECT_EQ(engine_->lookup("some", 0, 17), std::nullopt);
}

TEST_F(SchedulerLimitsTest, NoRequestWaitsForALoadThatIsCutTooShort) {
  max_load_wait_ = std::chrono::seconds(1);
  restart();
  register_ranks({});
  fill({1, 2, 3, 4}, 0);
  arrive("loader", {1, 2, 3, 4}, load_at_most(4));
  EXPECT_EQ(engine_->lookup("loader", 0, 17), 4U);
  engine_->on_allocated("loader", blocks_of({40}), 4);
  ASSERT_EQ(plan().loads.size(), 1U);
  arrive("r", {1, 2, 3, 4});
  EXPECT_EQ(engine_->lookup("r", 0, 17), 16U);
}

// ---- windows and states ----

class SchedulerLimitsOfGroupsTest : public SchedulerGroupsTest {
 protected:
  void restart_by_engine(const std::vector<KvGroup>& groups) {
    retention_ = {Retention::Rule::kEngine, 0};
    restart_with(groups);
  }
};

TEST_F(SchedulerLimitsOfGroupsTest, ABoundedHitEndsWhereTheWindowIs) {
  arrive("fill", {1, 2, 3, 4, 5});
  schedule("fill", {{10, 11, 12, 13, 14}, {0, 21, 22, 0, 24}}, 0, 20);
  fold_ends(plan());
  engine_->on_finished("fill");
  arrive("whole", {1, 2, 3, 4, 5});
  EXPECT_EQ(engine_->lookup("whole", 0, 20), 12U);
  arrive("exact", {1, 2, 3, 4, 5}, load_at_most(12));
  EXPECT_EQ(engine_->lookup("exact", 0, 20), 12U);
  arrive("less", {1, 2, 3, 4, 5}, load_at_most(11));
  EXPECT_EQ(engine_->lookup("less", 0, 20), 0U) << "the window before the eighth token is missing";
}

TEST_F(SchedulerLimitsOfGroupsTest, TheEndOfABoundedLookupIsNoJunction) {
  restart_by_engine({{}, {TokenReach::window(8)}});
  arrive("fill", {1, 2, 3, 4});
  schedule("fill", {{10, 11, 12, 13}, {0, 0, 0, 0}}, 0, 16);
  fold_ends(plan());
  engine_->on_finished("fill");
  arrive("less", {1, 2, 3, 4}, load_at_most(8));
  EXPECT_EQ(engine_->lookup("less", 0, 17), 0U);
  schedule("less", {{20, 21, 22, 23}, {30, 31, 32, 33}}, 0, 16);
  EXPECT_EQ(planned_blocks(plan()), Blocks());
  engine_->on_finished("less");
  arrive("whole", {1, 2, 3, 4});
  EXPECT_EQ(engine_->lookup("whole", 0, 17), 0U);
  schedule("whole", {{40, 41, 42, 43}, {50, 51, 52, 53}}, 0, 16);
  EXPECT_EQ(planned_blocks(plan()), (Blocks{52, 53}));
}

TEST_F(SchedulerLimitsOfGroupsTest, TheWindowBeforeTheLastWantedBlockIsStored) {
  restart_by_engine({{}, {TokenReach::window(8)}});
  arrive("r", {1, 2, 3, 4}, store_at_most(13));
  schedule("r", {{10, 11, 12, 13}, {20, 21, 22, 23}}, 0, 16);
  const StepPlan step = plan();
  EXPECT_EQ(planned_blocks(step), (Blocks{10, 11, 12, 21, 22}));
  fold_ends(step);
  engine_->on_finished("r");
  EXPECT_EQ(ask("next", {1, 2, 3, 9}), 3U);
}

TEST_F(SchedulerLimitsOfGroupsTest, StatesAfterTheLimitAreNotStored) {
  restart_with({{}, {TokenReach::state(0)}});
  arrive("r", {1, 2, 3}, store_at_most(8));
  schedule("r", {{10, 11, 12}, {0, 21, 22}}, 0, 12);
  engine_->on_state("r", GroupId(1), BlockId(21), 8);
  engine_->on_state("r", GroupId(1), BlockId(22), 12);
  EXPECT_EQ(planned_blocks(plan()), (Blocks{21, 10, 11}));
  EXPECT_EQ(view().num_backlog, 0U);
}

TEST_F(SchedulerLimitsOfGroupsTest, AStateThatIsFoundAfterTheLimitIsNotStored) {
  restart_with({{}, {TokenReach::state(0)}});
  leave_to_the_engine({1, 2}, {{10, 11}, {0, 21}});
  arrive("r", {1, 2, 3}, store_at_most(4));
  schedule("r", {{10, 11, 12}, {0, 21, 22}}, 8, 4);
  EXPECT_EQ(planned_in_two(), Blocks{10});
  arrive("s", {1, 2, 4});
  schedule("s", {{10, 11, 32}, {0, 21, 42}}, 8, 4);
  EXPECT_EQ(planned_in_two(), (Blocks{11, 21, 32})) << "what another request finds is stored";
}

}  // namespace
}  // namespace kvferry::connector
