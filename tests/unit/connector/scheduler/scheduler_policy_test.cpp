// SPDX-License-Identifier: Apache-2.0
// What the scheduler side tells the tier's policy, and does with its answers.
#include "scheduler_fixture.hpp"

namespace kvferry::connector {
namespace {

using cpu_tier::Admission;
using cpu_tier::Eviction;

constexpr cpu_tier::TierOptions kSecondOffer{Eviction::kLru, Admission::kSecondOffer, 0};
constexpr cpu_tier::TierOptions kLookAhead{Eviction::kLru, Admission::kAlways, 0.5F};

/// A tier of four slots.
class SchedulerPolicyTest : public SchedulerTest {
 protected:
  void start(const cpu_tier::TierOptions& options) {
    tier_options_ = options;
    restart();
    register_ranks({.num_slots = 4});
  }
  /// A request computes the keys into blocks from `first_block` on, and ends; which blocks are
  /// stored.
  Blocks serve(std::string_view id, const std::vector<std::uint64_t>& keys,
               std::uint32_t first_block) {
    arrive(id, keys);
    Blocks table;
    for (std::uint32_t i = 0; i < keys.size(); ++i) table.push_back(first_block + i);
    schedule(id, table, 0, static_cast<std::uint32_t>(keys.size()) * kBlockTokens);
    const StepPlan step = plan();
    fold_ends(step);
    engine_->on_finished(id);
    return planned_blocks(step);
  }
};

TEST_F(SchedulerPolicyTest, DeclinedBlocksAreNeitherStoredNorInTheBacklogUntilOfferedAgain) {
  start(kSecondOffer);
  fill({1, 2, 3, 4}, 0);
  EXPECT_EQ(serve("r", {5, 6}, 20), Blocks());
  EXPECT_EQ(view().num_backlog, 0U);
  EXPECT_EQ(view().skipped_declined, 2U);
  EXPECT_EQ(view().tier.num_declined_total, 2U);
  EXPECT_EQ(serve("s", {5, 6}, 22), (Blocks{22, 23}));
  EXPECT_EQ(view().skipped_declined, 2U);
}

TEST_F(SchedulerPolicyTest, ATierWithRoomDeclinesNothing) {
  start(kSecondOffer);
  EXPECT_EQ(serve("r", {1, 2, 3}, 20), (Blocks{20, 21, 22}));
  EXPECT_EQ(serve("s", {4}, 30), (Blocks{30}));
  EXPECT_EQ(view().skipped_declined, 0U);
}

TEST_F(SchedulerPolicyTest, WhatIsComputedBeforeTheRanksRegisteredIsStoredBehindIt) {
  tier_options_ = kSecondOffer;
  restart();
  arrive("r", {1, 2});
  schedule("r", {10, 11}, 0, 8);
  pool_.cache(10, 1);
  pool_.cache(11, 2);
  EXPECT_TRUE(plan().stores.empty());
  EXPECT_EQ(view().skipped_declined, 0U);
  register_ranks({.num_slots = 4});
  EXPECT_EQ(planned_blocks(plan()), (Blocks{10, 11}));
}

TEST_F(SchedulerPolicyTest, NothingIsStoredBehindABlockThatWasDeclined) {
  start(kSecondOffer);
  fill({1, 2, 3, 4}, 0);
  // Known from here: of the keys 7, 8 and 9 the last is offered for the second time.
  EXPECT_EQ(serve("r", {9}, 20), Blocks());
  arrive("s", {7, 8, 9});
  schedule("s", {30, 31}, 0, 8);
  EXPECT_TRUE(plan().stores.empty());
  schedule("s", {30, 31, 32}, 8, 4);
  EXPECT_TRUE(plan().stores.empty()) << "a load would not reach it";
  EXPECT_EQ(view().num_backlog, 0U);
  EXPECT_EQ(view().skipped_declined, 4U);
  // Its next run starts anew, and all of it is offered for the second time.
  engine_->on_preempted("s");
  schedule("s", {40, 41, 42}, 0, 12);
  EXPECT_EQ(planned_blocks(plan()), (Blocks{40, 41, 42}));
}

TEST_F(SchedulerPolicyTest, BlocksOfAQueuedRequestStayUntilItsTurn) {
  for (const bool looks_ahead : {true, false}) {
    start(looks_ahead ? kLookAhead : cpu_tier::TierOptions{Eviction::kLru, Admission::kAlways, 0});
    fill({1, 2}, 0);
    fill({3, 4}, 10);
    arrive("queued", {1, 2, 9});
    EXPECT_EQ(view().tier.num_awaited, looks_ahead ? 2U : 0U);
    fill({5, 6}, 20);
    EXPECT_EQ(engine_->lookup("queued", 0, 13), looks_ahead ? 8U : 0U);
    EXPECT_EQ(num_hit({3, 4}), looks_ahead ? 0U : 2U);
    engine_->on_finished("queued");
  }
}

TEST_F(SchedulerPolicyTest, AbortWhileQueuedEndsTheWaitAtOnce) {
  start(kLookAhead);
  fill({1, 2}, 0);
  fill({3, 4}, 10);
  arrive("queued", {1, 2, 9});
  arrive("other", {1, 2});
  engine_->on_finished("queued");
  EXPECT_EQ(view().tier.num_awaited, 2U) << "the other one waits for them, too";
  engine_->on_finished("queued");
  EXPECT_EQ(view().tier.num_awaited, 2U) << "finished once is finished";
  engine_->on_finished("other");
  EXPECT_EQ(view().tier.num_awaited, 0U);
}

TEST_F(SchedulerPolicyTest, ReusedIdEndsTheWaitOfItsEarlierLife) {
  start(kLookAhead);
  fill({1, 2}, 0);
  arrive("r", {1, 2});
  arrive("r", {9});
  EXPECT_EQ(view().tier.num_awaited, 0U);
}

TEST_F(SchedulerPolicyTest, TheRunEndsTheWait) {
  start(kLookAhead);
  fill({1, 2}, 0);
  arrive("loads", {1, 2, 9});
  EXPECT_EQ(engine_->lookup("loads", 0, 13), 8U);
  engine_->on_allocated("loads", std::vector<BlockId>{BlockId(20), BlockId(21)}, 8);
  EXPECT_EQ(view().tier.num_awaited, 0U);
  fold_ends(plan());
  engine_->on_finished("loads");
  arrive("computes", {1, 2});
  EXPECT_EQ(view().tier.num_awaited, 2U);
  schedule("computes", {30, 31}, 0, 8);
  static_cast<void>(plan());
  EXPECT_EQ(view().tier.num_awaited, 0U);
}

TEST_F(SchedulerPolicyTest, PreemptedRequestWaitsForItsTurnAgain) {
  start(kLookAhead);
  arrive("r", {1, 2});
  schedule("r", {20, 21}, 0, 8);
  fold_ends(plan());
  engine_->on_preempted("r");
  static_cast<void>(plan());
  EXPECT_EQ(view().tier.num_awaited, 2U);
  engine_->on_finished("r");
  EXPECT_EQ(view().tier.num_awaited, 0U);
}

TEST_F(SchedulerPolicyTest, OfAWindowTheBlocksThatALoadWouldTakeAreAwaited) {
  groups_ = {KvGroup{}, KvGroup{TokenReach::window(kBlockTokens + 1)}};
  start({Eviction::kLru, Admission::kAlways, 1.0F});
  arrive("r", {1, 2});
  const std::vector<std::vector<BlockId>> tables{{BlockId(20), BlockId(21)},
                                                 {BlockId(22), BlockId(23)}};
  const std::vector<std::span<const BlockId>> spans(tables.begin(), tables.end());
  engine_->on_scheduled("r", TableUpdate::kReplace, spans, 0, 8);
  fold_ends(plan());
  engine_->on_finished("r");
  arrive("queued", {1, 2});
  EXPECT_EQ(view().tier.num_awaited, 3U);
  engine_->on_finished("queued");
  EXPECT_EQ(view().tier.num_awaited, 0U);
}

TEST_F(SchedulerPolicyTest, TheDefaultAdapts) {
  const SchedulerOptions options;
  EXPECT_EQ(options.tier.eviction, Eviction::kAdaptive);
  EXPECT_EQ(options.tier.admission, Admission::kAdaptive);
  EXPECT_GT(options.tier.max_awaited_share, 0);
}

}  // namespace
}  // namespace kvferry::connector
