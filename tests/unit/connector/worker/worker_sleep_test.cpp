// SPDX-License-Identifier: Apache-2.0
// The engine takes its KV cache away and gives it back (vLLM's sleep mode).
#include "kvferry/base/error.hpp"
#include "kvferry/base/test_hooks.hpp"
#include "kvferry/gpu/host_link.hpp"

#include "worker_fixture.hpp"

#include <algorithm>
#include <thread>

namespace kvferry::connector {
namespace {

class WorkerSleepTest : public WorkerTest {
 protected:
  /// The KV cache as it comes back: in `moved_`, with the fragments in another order in memory.
  [[nodiscard]] std::vector<gpu::BlockGeometry> elsewhere(std::uint64_t second_bytes = 80) {
    const auto base = reinterpret_cast<std::uintptr_t>(moved_.data());
    return {gpu::make_block_geometry(
        {{.base = base + kNumBlocks * 96, .block_stride_bytes = 64, .bytes = 48},
         {.base = base, .block_stride_bytes = 96, .bytes = second_bytes}},
        kNumBlocks)};
  }
  [[nodiscard]] std::uint8_t moved_byte(std::uint32_t block, std::size_t offset) const {
    return offset < 48 ? moved_[kNumBlocks * 96 + block * 64 + offset]
                       : moved_[block * 96 + offset - 48];
  }
  void store_block(std::uint64_t transfer, std::uint32_t block, std::uint32_t slot) {
    StepPlan plan = next_plan();
    plan.stores.push_back(store(transfer, pairs(block, slot, 1)));
    bind_and_save(plan);
  }
  [[nodiscard]] std::size_t num_buffers() const {
    return gpu::host_device_usage(*device_).num_buffers;
  }

  std::vector<std::uint8_t> moved_ = std::vector<std::uint8_t>(kNumBlocks * (64 + 96));
};

TEST_F(WorkerSleepTest, GivesTheDeviceMemoryBackAndTakesItAgain) {
  const std::size_t before = num_buffers();
  ASSERT_GT(before, 0U);
  for (int i = 0; i < 3; ++i) {
    engine_->sleep();
    EXPECT_TRUE(engine_->is_asleep());
    EXPECT_EQ(num_buffers(), 0U);
    engine_->sleep();
    engine_->wake(elsewhere());
    EXPECT_FALSE(engine_->is_asleep());
    EXPECT_EQ(num_buffers(), before);
    engine_->wake(elsewhere());
  }
}

TEST_F(WorkerSleepTest, WhatWasGatheredIsStoredAndIsLoadedIntoTheNewKvCache) {
  write(3, 7);
  valve_.hold(Kind::kCopyD2H);
  store_block(1, 3, 5);
  std::thread opens([this] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    valve_.open_all();
  });
  engine_->sleep();
  opens.join();
  // The old KV cache is gone.
  std::fill(pool_.begin(), pool_.end(), 0xee);
  engine_->wake(elsewhere());
  collect_ends(1, 0);
  EXPECT_EQ(report_.stores[0].outcome, Outcome::kDone);
  StepPlan plan = next_plan();
  plan.loads.push_back(load(2, pairs(9, 5, 1)));
  bind_and_save(plan);
  collect_ends(1, 1);
  for (std::size_t i = 0; i < kBlockBytes; ++i) ASSERT_EQ(moved_byte(9, i), content(7, i)) << i;
  EXPECT_TRUE(std::all_of(pool_.begin(), pool_.end(), [](auto byte) { return byte == 0xee; }))
      << "nothing goes where the KV cache was";
}

TEST_F(WorkerSleepTest, WaitsForALoadAndReportsItAsCancelledBecauseItsBlocksAreGone) {
  valve_.hold(Kind::kCopyH2D);
  StepPlan plan = next_plan();
  plan.loads.push_back(load(1, pairs(0, 0, 2)));
  bind_and_save(plan);
  await([&] { return valve_.num_arrived(Kind::kCopyH2D) == 1; });
  std::thread opens([this] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    valve_.open_all();
  });
  engine_->sleep();
  opens.join();
  EXPECT_EQ(valve_.num_arrived(Kind::kCopyH2D), 2U) << "it waited for all of it";
  collect_ends(0, 1);
  EXPECT_EQ(report_.loads[0].outcome, Outcome::kCancelled);
  EXPECT_NE(report_.loads[0].reason.find("took its KV cache away"), std::string::npos);
}

TEST_F(WorkerSleepTest, AStoreThatWasBoundAndNotSavedIsSkipped) {
  StepPlan plan = next_plan();
  plan.stores.push_back(store(1, pairs(0, 0, 2)));
  bind(plan);
  engine_->sleep();
  EXPECT_FALSE(engine_->waiting());
  collect();
  ASSERT_EQ(report_.gathered.size(), 1U);
  EXPECT_EQ(report_.gathered[0].num_gathered, 0U);
}

TEST_F(WorkerSleepTest, CopiesThatDoNotEndLeaveItAwakeAndGoOn) {
  start({.transfer_timeout = std::chrono::milliseconds(50)});
  write(3, 7);
  valve_.hold(Kind::kCopyD2H);
  store_block(1, 3, 5);
  try {
    engine_->sleep();
    ADD_FAILURE() << "no TimeoutError";
  } catch (const TimeoutError& error) {
    const std::string text = error.what();
    for (const char* part : {"rank 1", "transfer_timeout_s", "nothing was given back"}) {
      EXPECT_NE(text.find(part), std::string::npos) << part << " is not in: " << text;
    }
  }
  EXPECT_FALSE(engine_->is_asleep());
  EXPECT_GT(num_buffers(), 0U);
  valve_.open_all();
  engine_->sleep();
  EXPECT_TRUE(engine_->is_asleep());
  collect_ends(1, 0);
  EXPECT_EQ(report_.stores[0].outcome, Outcome::kDone);
}

#ifdef KVFERRY_TEST_HOOKS
TEST_F(WorkerSleepTest, WaitsForAGatherThatNoEventMarks) {
  start({.transfer_timeout = std::chrono::milliseconds(50), .compute = Setup::Compute::kThread});
  valve_.hold(Kind::kGather);
  test_hooks::fail_nth_of("transfer.record_gather", 1);
  store_block(1, 3, 5);
  test_hooks::reset();
  EXPECT_THROW(engine_->sleep(), TimeoutError);
  EXPECT_FALSE(engine_->is_asleep());
  valve_.open_all();
  engine_->sleep();
  EXPECT_TRUE(engine_->is_asleep());
  collect_ends(1, 0);
  EXPECT_EQ(report_.stores[0].outcome, Outcome::kFailed);
}
#endif

TEST_F(WorkerSleepTest, AWakeWithoutMemoryLeavesItAsleepAndMayComeAgain) {
  const std::size_t before = num_buffers();
  engine_->sleep();
  EXPECT_THROW(engine_->wake({}), ConfigError);
  EXPECT_THROW(engine_->wake(elsewhere(72)), ConfigError) << "blocks of another size";
  EXPECT_TRUE(engine_->is_asleep());
  EXPECT_EQ(num_buffers(), 0U);
  engine_->wake(elsewhere());
  EXPECT_EQ(num_buffers(), before);
}

TEST_F(WorkerSleepTest, APlanThatMovesBlocksIsRefusedAndOthersAreTaken) {
  engine_->sleep();
  StepPlan plan = next_plan();
  plan.stores.push_back(store(1, pairs(0, 0, 1)));
  expect_refused(plan, {"rank 1", "plan 1", "sleeps"});
  plan.stores.clear();
  plan.loads.push_back(load(1, pairs(0, 0, 1)));
  expect_refused(plan, {"rank 1", "plan 1", "sleeps"});
  plan.loads.clear();
  // A witness, and a load of which this rank has no part.
  plan.stores.push_back(store(2, {}));
  plan.loads.push_back(load(3, {}));
  bind_and_save(plan);
  collect_ends(0, 1);
  ASSERT_EQ(report_.gathered.size(), 1U) << "the witness";
  engine_->wake(elsewhere());
  write(0, 1);
  plan = next_plan();
  plan.stores.push_back(store(4, pairs(0, 0, 1)));
  bind_and_save(plan);
  collect_ends(1, 1);
}

TEST_F(WorkerSleepTest, ClosesAsleep) {
  engine_->sleep();
  engine_->close();
  engine_.reset();
  EXPECT_EQ(gpu::host_device_usage(*device_), gpu::HostDeviceUsage{});
}

TEST_F(WorkerSleepTest, CountersGoOn) {
  write(3, 7);
  store_block(1, 3, 5);
  engine_->sleep();
  EXPECT_EQ(engine_->stats().stored_blocks, 1U);
  EXPECT_EQ(engine_->stats().ring_used_bytes, 0U);
  engine_->wake(elsewhere());
  store_block(2, 3, 6);
  engine_->sleep();
  EXPECT_EQ(engine_->stats().stored_blocks, 2U);
}

}  // namespace
}  // namespace kvferry::connector
