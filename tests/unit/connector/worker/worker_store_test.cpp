// SPDX-License-Identifier: Apache-2.0
#include "worker_fixture.hpp"

namespace kvferry::connector {
namespace {

class WorkerStoreTest : public WorkerTest {
 protected:
  void expect_gathered(const std::vector<std::pair<std::uint64_t, std::uint32_t>>& expected) {
    ASSERT_EQ(report_.gathered.size(), expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_EQ(report_.gathered[i].transfer, TransferId(expected[i].first));
      EXPECT_EQ(report_.gathered[i].num_gathered, expected[i].second);
    }
  }
  /// Loads slots from `slot` on into the last blocks and compares.
  void expect_slots(std::uint32_t slot, const std::vector<std::uint8_t>& versions) {
    const auto count = static_cast<std::uint32_t>(versions.size());
    const std::size_t num_stores = report_.stores.size();
    const std::size_t num_loads = report_.loads.size();
    StepPlan plan = next_plan();
    plan.loads.push_back(load(1000 + slot, pairs(kNumBlocks - count, slot, count)));
    bind_and_save(plan);
    collect_ends(num_stores, num_loads + 1);
    for (std::uint32_t i = 0; i < count; ++i) expect_content(kNumBlocks - count + i, versions[i]);
  }
};

TEST_F(WorkerStoreTest, BytesComeBackAsTheyWereStored) {
  for (std::uint8_t i = 0; i < 6; ++i) write(i, i + 1);
  StepPlan plan = next_plan();
  plan.stores.push_back(store(1, {{BlockId(4), SlotId(9)}, {BlockId(0), SlotId(3)}}));
  plan.stores.push_back(store(2, pairs(1, 20, 3)));
  bind_and_save(plan);
  for (std::uint8_t i = 0; i < 6; ++i) write(i, 99);  // The blocks are the engine's again (G1).
  collect_ends(2, 0);
  expect_gathered({{1, 2}, {2, 3}});
  for (const TransferEnded& ended : report_.stores) EXPECT_EQ(ended.outcome, Outcome::kDone);
  expect_slots(20, {2, 3, 4});
  expect_slots(9, {5});
  expect_slots(3, {1});
}

TEST_F(WorkerStoreTest, SaysWhatItIsInItsFirstReportOnly) {
  EXPECT_TRUE(engine_->take_report().empty()) << "no plan has told it which engine it serves";
  bind_and_save(next_plan());
  const StepReport report = take_report();
  EXPECT_EQ(report.domain, kDomain);
  EXPECT_EQ(report.rank, RankId(1));
  ASSERT_TRUE(report.topology);
  EXPECT_EQ(report.topology->world_size, 2U);
  EXPECT_EQ(report.topology->num_blocks, kNumBlocks);
  ASSERT_EQ(report.topology->classes.size(), 1U);
  EXPECT_EQ(report.topology->classes[0].slot_bytes, kBlockBytes);
  EXPECT_EQ(report.topology->classes[0].slots_per_chunk, 1U);
  EXPECT_EQ(report.topology->num_chunks, kNumSlots);
  EXPECT_EQ(report.topology->ring_blocks, 16U);
  bind_and_save(next_plan());
  EXPECT_TRUE(engine_->take_report().empty());
}

TEST_F(WorkerStoreTest, ReadsReadyBlocksAtTheBindAndTheOthersBehindTheForward) {
  write(1, 1);
  write(2, 1);
  StepPlan plan = next_plan();
  plan.stores.push_back(store(1, pairs(1, 0, 1), StoreReadiness::kNow));
  plan.stores.push_back(store(2, pairs(2, 1, 1)));
  bind(plan);
  write(1, 2);
  write(2, 2);
  engine_->save(0);
  collect_ends(2, 0);
  expect_slots(0, {1, 2});
}

// A plan is bound by a rank that never saves it: its slots stayed reserved for ever, or were
// gathered late.
TEST_F(WorkerStoreTest, WhatWasBoundAndNeverSavedIsSkippedAtTheNextBindAndNeverGatheredLate) {
  write(1, 1);
  StepPlan plan = next_plan();
  plan.stores.push_back(store(1, pairs(1, 0, 2)));
  bind(plan);
  engine_->pump(0);
  collect();
  expect_gathered({});
  bind(next_plan());
  collect();
  expect_gathered({{1, 0}});
  engine_->save(0);
  engine_->pump(0);
  collect_ends(0, 0);
  EXPECT_EQ(valve_.num_arrived(Kind::kGather), 0U);
  EXPECT_EQ(engine_->stats().stored_bytes, 0U);
}

TEST_F(WorkerStoreTest, WhatWasGatheredAtTheBindIsStoredWithoutASave) {
  write(1, 1);
  write(2, 2);
  StepPlan plan = next_plan();
  plan.stores.push_back(store(1, pairs(1, 0, 2), StoreReadiness::kNow));
  plan.stores.push_back(store(2, pairs(3, 5, 1)));
  bind(plan);
  bind(next_plan());
  collect_ends(1, 0);
  expect_gathered({{1, 2}, {2, 0}});
  expect_slots(0, {1, 2});
}

TEST_F(WorkerStoreTest, ARingSmallerThanThePlanTakesItsHeadAndSkipsTheRest) {
  start({.ring_blocks = 4});
  valve_.hold(Kind::kCopyD2H);
  for (std::uint8_t i = 0; i < 10; ++i) write(i, i + 1);
  StepPlan plan = next_plan();
  plan.stores.push_back(store(1, pairs(0, 0, 3)));
  plan.stores.push_back(store(2, pairs(3, 3, 5)));
  plan.stores.push_back(store(3, pairs(8, 8, 2)));
  bind_and_save(plan);
  collect();
  expect_gathered({{1, 3}, {2, 1}, {3, 0}});
  valve_.open_all();
  collect_ends(2, 0);
  expect_slots(0, {1, 2, 3, 4});
}

// LMCache#2942: a wait for staging that nobody drained.
TEST_F(WorkerStoreTest, PumpGoesOnWhereTheRingWasFullOnceSpaceReturns) {
  start({.ring_blocks = 4});
  valve_.hold(Kind::kCopyD2H);
  for (std::uint8_t i = 0; i < 10; ++i) write(i, i + 1);
  StepPlan plan = next_plan();
  plan.stores.push_back(store(1, pairs(0, 0, 7), StoreReadiness::kNow));
  plan.stores.push_back(store(2, pairs(7, 7, 3), StoreReadiness::kNow));
  bind(plan);
  EXPECT_TRUE(engine_->waiting());
  engine_->pump(0);
  EXPECT_EQ(engine_->stats().stored_bytes, 0U);
  valve_.open_all();
  // Ten blocks through a ring of four, in the same step: only pump() can have gathered the last.
  await([this] {
    engine_->pump(0);
    return engine_->stats().stored_bytes == 10 * kBlockBytes;
  });
  engine_->save(0);
  EXPECT_FALSE(engine_->waiting());
  collect_ends(2, 0);
  expect_gathered({{1, 7}, {2, 3}});
  expect_slots(0, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10});
}

TEST_F(WorkerStoreTest, AFailedStoreDoesNotKeepTheOnesAfterItOutOfTheRing) {
  // One piece takes the whole ring, so that nothing of the first store is copied beside the
  // failure.
  start({.ring_blocks = 4, .piece_blocks = 4, .in_flight_blocks = 4});
  valve_.fail_nth(Kind::kCopyD2H, 1);
  StepPlan plan = next_plan();
  plan.stores.push_back(store(1, pairs(0, 0, 7), StoreReadiness::kNow));
  plan.stores.push_back(store(2, pairs(7, 7, 3), StoreReadiness::kNow));
  bind(plan);
  await([this] {
    engine_->pump(0);
    return engine_->stats().stored_bytes == 3 * kBlockBytes;
  });
  engine_->save(0);
  collect_ends(2, 0);
  // Of the first store, all or what one ring holds: its failure is known soon after its room is
  // free.
  ASSERT_EQ(report_.gathered.size(), 2U);
  EXPECT_EQ(report_.gathered[1].num_gathered, 3U);
}

TEST_F(WorkerStoreTest, PumpDoesNotGatherWhatTheForwardStillWrites) {
  StepPlan plan = next_plan();
  plan.stores.push_back(store(1, pairs(0, 0, 1)));
  bind(plan);
  for (int i = 0; i < 3; ++i) engine_->pump(0);
  EXPECT_EQ(valve_.num_arrived(Kind::kGather), 0U);
  engine_->save(0);
  EXPECT_EQ(valve_.num_arrived(Kind::kGather), 1U);
  collect_ends(1, 0);
}

TEST_F(WorkerStoreTest, WithoutARingEverythingIsSkipped) {
  start({.ring_blocks = 0});
  StepPlan plan = next_plan();
  plan.stores.push_back(store(1, pairs(0, 0, 2)));
  bind_and_save(plan);
  collect_ends(0, 0);
  ASSERT_TRUE(report_.topology);
  EXPECT_EQ(report_.topology->ring_blocks, 0U);
  expect_gathered({{1, 0}});
}

// LMCache#4991: a failed store stayed visible.
TEST_F(WorkerStoreTest, AFailedCopyIsReportedAsFailedWithItsReason) {
  valve_.fail_nth(Kind::kCopyD2H, 1);
  StepPlan plan = next_plan();
  plan.stores.push_back(store(1, pairs(0, 0, 1)));
  bind_and_save(plan);
  collect_ends(1, 0);
  EXPECT_EQ(report_.stores[0].outcome, Outcome::kFailed);
  EXPECT_FALSE(report_.stores[0].reason.empty());
}

TEST_F(WorkerStoreTest, AFailedGatherIsReportedAsFailed) {
  valve_.fail_nth(Kind::kGather, 1);
  StepPlan plan = next_plan();
  plan.stores.push_back(store(1, pairs(0, 0, 1)));
  bind_and_save(plan);
  collect_ends(1, 0);
  EXPECT_EQ(report_.stores[0].outcome, Outcome::kFailed);
}

TEST_F(WorkerStoreTest, ACancelledStoreIsReportedOnce) {
  start({.in_flight_blocks = 1});
  valve_.hold(Kind::kCopyD2H);
  StepPlan plan = next_plan();
  plan.stores.push_back(store(1, pairs(0, 0, 4)));
  bind_and_save(plan);
  await([this] { return valve_.num_arrived(Kind::kCopyD2H) == 1; });
  plan = next_plan();
  plan.cancels.push_back(TransferId(1));
  bind_and_save(plan);
  collect();
  EXPECT_TRUE(report_.stores.empty()) << "a copy of it still runs";
  valve_.open_all();
  collect_ends(1, 0);
  EXPECT_EQ(report_.stores[0].outcome, Outcome::kCancelled);
}

}  // namespace
}  // namespace kvferry::connector
