// SPDX-License-Identifier: Apache-2.0
#include "store_planner.hpp"

#include "engine_tier.hpp"
#include "fake_engine.hpp"
#include "scheduler_fixture.hpp"

#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <string>
#include <vector>

namespace kvferry::connector {
namespace {

constexpr DomainId kDomain{3};
constexpr std::uint32_t kNumBlocks = 32;

/// A tier of four slots that takes all that it is offered, and one rank with a ring.
class StorePlannerTest : public ::testing::Test {
 protected:
  StorePlannerTest() {
    tier_->grow_to(4);
    planner_.set_pool(&pool_);
  }
  ~StorePlannerTest() override { end_stores(); }
  [[nodiscard]] static SchedulerOptions options() {
    SchedulerOptions options;
    options.hash_tokens = kBlockTokens;
    options.classes = {{1, {1}}};
    options.max_chunks = 16;
    options.tier = {cpu_tier::Eviction::kLru, cpu_tier::Admission::kAlways, 0};
    return options;
  }

  /// In this step the request computes these blocks whole, from its first token on.
  Request& compute(const std::string& id, const std::vector<std::uint64_t>& numbers,
                   std::uint32_t first_block) {
    Request& request = requests_.arrive(id, std::make_shared<FakeHashes>(numbers));
    EXPECT_EQ(request.sync_keys(groups_), std::nullopt);
    std::vector<BlockId> blocks;
    for (std::uint32_t i = 0; i < numbers.size(); ++i) {
      blocks.push_back(BlockId(first_block + i));
      pool_.cache(first_block + i, numbers[i]);
    }
    compute_again(request, blocks);
    return request;
  }
  void compute_again(Request& request, const std::vector<BlockId>& blocks) {
    const std::array<std::span<const BlockId>, 1> by_group{blocks};
    const StepTokens tokens{0, static_cast<std::uint32_t>(blocks.size()) * kBlockTokens, 0};
    planner_.enter_step(last_.next());
    request.update_tables(TableUpdate::kReplace, by_group);
    prover_.cover(request, TableUpdate::kReplace, by_group, tokens, last_);
    if (planner_.note_step(request, TableUpdate::kReplace, tokens)) {
      planner_.offer_step(request, TableUpdate::kReplace, tokens);
    }
  }
  /// The orders of the step, which ends.
  std::vector<StoreOrder> plan() {
    last_ = last_.next();
    std::vector<StoreOrder> orders = planner_.plan({});
    planner_.end_step();
    sent_.insert(sent_.end(), orders.begin(), orders.end());
    return orders;
  }
  /// The rank has stored all that was sent.
  void end_stores() {
    for (const StoreOrder& order : sent_) {
      EXPECT_TRUE(stores_.mark_gathered(
          RankId(0), {order.transfer, static_cast<std::uint32_t>(order.blocks.size())}));
      if (!order.blocks.empty()) {
        EXPECT_TRUE(stores_.mark_ended(RankId(0), {order.transfer, Outcome::kDone, ""}));
      }
    }
    sent_.clear();
    stores_.settle();
  }
  [[nodiscard]] static std::vector<BlockId> blocks_in(const StoreOrder& order) {
    std::vector<BlockId> blocks;
    for (const BlockSlot& pair : order.blocks) blocks.push_back(pair.block);
    return blocks;
  }

  SchedulerOptions options_ = options();
  std::unique_ptr<cpu_tier::Tier> tier_ = make_tier(options_);
  BlockGroups groups_{options_.groups, kBlockTokens};
  RequestTable requests_{kDomain};
  BlockProver prover_{requests_, groups_, kNumBlocks, LaterTurns::kStored};
  Backlog backlog_{kNumBlocks};
  StoreBook stores_{*tier_, backlog_, 1};
  TransferIds transfers_;
  FakePool pool_{kNumBlocks};
  StorePlanner planner_{kDomain, Retention{}, *tier_,  groups_,
                        prover_, backlog_,    stores_, transfers_};
  PlanSeq last_;
  std::vector<StoreOrder> sent_;
};

TEST_F(StorePlannerTest, ManyBlocksAreATransferOfTheirRequest) {
  stores_.set_ring({8, {1}});
  const Request& request = compute("r", {1, 2, 3}, 10);
  const std::vector<StoreOrder> orders = plan();
  ASSERT_EQ(orders.size(), 1U);
  EXPECT_EQ(blocks_in(orders[0]), blocks_of({10, 11, 12}));
  EXPECT_EQ(orders[0].owner, request.owner(kDomain));
  EXPECT_EQ(orders[0].readiness, StoreReadiness::kAfterForward);
  EXPECT_TRUE(plan().empty()) << "a plan is made once";
}

TEST_F(StorePlannerTest, SingleBlocksShareATransferThatOwnsItself) {
  stores_.set_ring({8, {1}});
  compute("a", {1}, 10);
  compute("b", {2}, 11);
  compute("c", {1}, 12);
  const std::vector<StoreOrder> orders = plan();
  ASSERT_EQ(orders.size(), 1U);
  EXPECT_EQ(blocks_in(orders[0]), blocks_of({10, 11})) << "one of two blocks with one key";
  EXPECT_EQ(orders[0].owner, (Owner{kDomain, RequestId(), Generation(orders[0].transfer.value())}));
}

TEST_F(StorePlannerTest, WhatTheTierHasNoRoomForWaitsInTheBacklog) {
  stores_.set_ring({8, {1}});
  compute("r", {1, 2, 3, 4}, 10);
  compute("other", {5, 6}, 14);
  std::vector<StoreOrder> orders = plan();
  ASSERT_EQ(orders.size(), 1U);
  EXPECT_EQ(blocks_in(orders[0]), blocks_of({10, 11, 12, 13}));
  EXPECT_EQ(backlog_.size(), 2U);
  EXPECT_EQ(planner_.skipped().exhausted, 2U);
  end_stores();
  orders = plan();
  ASSERT_EQ(orders.size(), 1U);
  EXPECT_EQ(blocks_in(orders[0]), blocks_of({14, 15}));
  EXPECT_EQ(orders[0].readiness, StoreReadiness::kNow);
  EXPECT_EQ(backlog_.size(), 0U);
}

TEST_F(StorePlannerTest, OfTheBacklogOnlyWhatThePoolStillHasIsStored) {
  compute("r", {1, 2}, 10);
  EXPECT_TRUE(plan().empty()) << "no rank has registered";
  EXPECT_EQ(backlog_.size(), 2U);
  stores_.set_ring({8, {1}});
  pool_.reallocate(10);
  const std::vector<StoreOrder> orders = plan();
  ASSERT_EQ(orders.size(), 1U);
  EXPECT_EQ(blocks_in(orders[0]), blocks_of({11}));
  EXPECT_EQ(planner_.skipped().reallocated, 1U);
}

TEST_F(StorePlannerTest, ARequestThatIsHeldBackIsNotStoredUntilItIsComputedAnew) {
  stores_.set_ring({8, {1}});
  Request& request = compute("r", {1, 2}, 10);
  planner_.forget_all(requests_);
  EXPECT_FALSE(planner_.is_storable(request));
  EXPECT_TRUE(plan().empty());
  compute_again(request, blocks_of({10, 11}));
  EXPECT_TRUE(planner_.is_storable(request));
  EXPECT_EQ(plan().size(), 1U);
}

TEST_F(StorePlannerTest, ADroppedRequestsBlocksAreNotPlanned) {
  stores_.set_ring({8, {1}});
  const Request& request = compute("r", {1, 2}, 10);
  planner_.drop(request);
  EXPECT_TRUE(plan().empty());
}

TEST_F(StorePlannerTest, WithoutAStagingRingNothingIsKeptForLater) {
  stores_.set_ring({0, {1}});
  compute("r", {1, 2}, 10);
  EXPECT_TRUE(plan().empty());
  EXPECT_EQ(backlog_.size(), 0U);
}

// Another connector loads within the step: only what comes after it can tell that it came.
TEST_F(StorePlannerTest, AWitnessComesBeforeTheStores) {
  stores_.set_ring({8, {1}});
  compute("r", {1, 2}, 10);
  Request& loads =
      requests_.arrive("s", std::make_shared<FakeHashes>(std::vector<std::uint64_t>{5}));
  prover_.note_local(loads, 0, last_);
  const std::vector<BlockId> table = blocks_of({20});
  const std::array<std::span<const BlockId>, 1> tables{table};
  loads.update_tables(TableUpdate::kReplace, tables);
  prover_.cover(loads, TableUpdate::kReplace, tables, {4, 1, 0}, last_);
  const std::vector<StoreOrder> orders = plan();
  ASSERT_EQ(orders.size(), 2U);
  EXPECT_TRUE(orders[0].blocks.empty());
  EXPECT_EQ(blocks_in(orders[1]), blocks_of({10, 11}));
  EXPECT_FALSE(prover_.needs_witness());
}

}  // namespace
}  // namespace kvferry::connector
