// SPDX-License-Identifier: Apache-2.0
#include "kvferry/base/test_hooks.hpp"

#include "rig.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <string>
#include <thread>
#include <vector>

namespace kvferry::transfer {
namespace {

using Kind = Valve::Kind;

/// dynamo#15079, LMCache#4991, #5032: what failed must be told as failed, and nothing else.
class FailureTest : public TransferTest {
 protected:
  static std::map<std::uint64_t, Completion> by_id(const std::vector<Completion>& ends) {
    std::map<std::uint64_t, Completion> map;
    for (const Completion& end : ends) {
      EXPECT_TRUE(map.emplace(end.transfer.value(), end).second) << "ended twice";
    }
    return map;
  }
};

TEST_F(FailureTest, TheNthCopyFailsExactlyItsTransfer) {
  for (std::uint64_t n = 1; n <= 6; ++n) {
    for (const TransferKind kind : {TransferKind::kStore, TransferKind::kLoad}) {
      Rig rig({.link = {.fail_nth = n}});
      for (std::uint32_t i = 0; i < 6; ++i) {
        rig.write_block(Rig::kStrided, BlockId(i), 100 + i);
        rig.write_slot(Rig::kStrided, SlotId(i), 200 + i);
      }
      for (std::uint32_t i = 0; i < 6; ++i) {
        if (kind == TransferKind::kStore) {
          ASSERT_EQ(rig.store(i + 1, Rig::kStrided, blocks_to_slots(i, i, 1)), 1U);
        } else {
          rig.load(i + 1, Rig::kStrided, blocks_to_slots(i, i, 1));
        }
      }
      const auto ends = by_id(rig.finish());
      ASSERT_EQ(ends.size(), 6U);
      for (const auto& [id, end] : ends) {
        const auto index = static_cast<std::uint32_t>(id - 1);
        if (id == n) {
          EXPECT_EQ(end.outcome, Outcome::kFailed);
          EXPECT_NE(end.reason.find("copy"), std::string::npos) << end.reason;
          EXPECT_EQ(end.bytes, 0U);
        } else if (kind == TransferKind::kStore) {
          EXPECT_EQ(end.outcome, Outcome::kDone) << id;
          EXPECT_EQ(rig.slot(Rig::kStrided, SlotId(index)), pattern_bytes(100 + index, 128));
        } else {
          EXPECT_EQ(end.outcome, Outcome::kDone) << id;
          EXPECT_EQ(rig.block(Rig::kStrided, BlockId(index)), pattern_bytes(200 + index, 128));
        }
      }
      EXPECT_EQ(rig.engine->stats().failed_transfers, 1U);
      EXPECT_EQ(rig.engine->stats().ring_used_bytes, 0U);
    }
  }
}

TEST_F(FailureTest, ADeviceThatCannotTellTheTimeOfACopyHasCopiedAllTheSame) {
  Rig rig;
  rig.write_block(Rig::kDense, BlockId(0), 7);
  test_hooks::fail_nth_of("gpu.host.elapsed", 1);
  ASSERT_EQ(rig.store(1, Rig::kDense, blocks_to_slots(0, 0, 1)), 1U);
  const Completion end = rig.finish_one();
  EXPECT_EQ(test_hooks::num_faults(), 1U);
  EXPECT_EQ(end.outcome, Outcome::kDone);
  EXPECT_EQ(end.device_time.count(), 0);
  EXPECT_EQ(rig.slot(Rig::kDense, SlotId(0)), pattern_bytes(7, Rig::kSlotBytes));
}

TEST_F(FailureTest, DropsTheRestOfAFailedTransfer) {
  Rig rig(
      {.transfer = {
           .staging_bytes = 1 << 16, .max_in_flight_bytes = 0, .piece_bytes = Rig::kSlotBytes}});
  rig.valve.fail_nth(Kind::kCopyD2H, 2);
  ASSERT_EQ(rig.store(1, Rig::kDense, blocks_to_slots(0, 0, 8)), 8U);
  const Completion end = rig.finish_one();
  EXPECT_EQ(end.outcome, Outcome::kFailed);
  EXPECT_EQ(end.bytes, Rig::kSlotBytes);
  EXPECT_EQ(rig.valve.num_arrived(Kind::kCopyD2H), 2U);
  EXPECT_EQ(rig.engine->stats().ring_used_bytes, 0U);
  EXPECT_EQ(rig.engine->stats().queued_bytes, 0U);
}

TEST_F(FailureTest, WaitsForThePiecesThatRunBesideAFailedOne) {
  Rig rig({.transfer = {.staging_bytes = 1 << 16, .piece_bytes = Rig::kSlotBytes}});
  std::atomic<int> completed{0};
  test_hooks::on_pause("transfer.before_complete", [&] { ++completed; });
  std::atomic<int> submitted{0};
  test_hooks::on_pause("transfer.before_submit", [&] { ++submitted; });
  rig.valve.hold(Kind::kCopyD2H);
  rig.valve.fail_nth(Kind::kCopyD2H, 1);
  ASSERT_EQ(rig.store(1, Rig::kDense, blocks_to_slots(0, 0, 3)), 3U);
  await([&] { return submitted == 3; }, "three pieces");
  rig.valve.hold(Kind::kCopyD2H, 1);
  await([&] { return completed == 1; }, "the failed piece");
  await([&] { return rig.valve.num_arrived(Kind::kCopyD2H) == 2; },
        "the piece that runs beside it");
  EXPECT_FALSE(rig.engine->wait_idle(std::chrono::milliseconds(20)));
  rig.valve.open(Kind::kCopyD2H);
  EXPECT_EQ(rig.finish_one().outcome, Outcome::kFailed);
}

TEST_F(FailureTest, AGatherThatFailsOnTheDeviceFailsItsStore) {
  Rig rig;
  rig.valve.fail_nth(Kind::kGather, 2);
  for (std::uint32_t i = 0; i < 3; ++i) {
    rig.write_block(Rig::kDense, BlockId(i), i);
    ASSERT_EQ(rig.store(i + 1, Rig::kDense, blocks_to_slots(i, i, 1)), 1U);
  }
  const auto ends = by_id(rig.finish());
  ASSERT_EQ(ends.size(), 3U);
  EXPECT_EQ(ends.at(1).outcome, Outcome::kDone);
  EXPECT_EQ(ends.at(2).outcome, Outcome::kFailed);
  EXPECT_NE(ends.at(2).reason.find("gather"), std::string::npos) << ends.at(2).reason;
  EXPECT_EQ(ends.at(3).outcome, Outcome::kDone);
  EXPECT_EQ(rig.engine->stats().ring_used_bytes, 0U);
}

TEST_F(FailureTest, ALaunchThatIsRefusedCountsAsGatheredAndFailsItsStore) {
  Rig rig;
  test_hooks::fail_nth_of("transfer.gather", 1);
  EXPECT_EQ(rig.engine->gather(*rig.compute, TransferId(1), Rig::kDense, blocks_to_slots(0, 0, 4)),
            4U);
  EXPECT_EQ(rig.engine->stats().ring_used_bytes, 0U) << "nothing runs, so its entries are free";
  EXPECT_EQ(rig.engine->gather(*rig.compute, TransferId(1), Rig::kDense, blocks_to_slots(4, 4, 4)),
            0U)
      << "a failed store takes nothing more";
  EXPECT_TRUE(rig.engine->seal(TransferId(1)));
  const Completion end = rig.finish_one();
  EXPECT_EQ(end.outcome, Outcome::kFailed);
  EXPECT_NE(end.reason.find("transfer.gather"), std::string::npos) << end.reason;
  EXPECT_EQ(rig.store(2, Rig::kDense, blocks_to_slots(0, 0, 4)), 4U);
  EXPECT_EQ(rig.finish_one().outcome, Outcome::kDone);
}

TEST_F(FailureTest, ARefusedLaunchDropsWhatWasGatheredBefore) {
  Rig rig({.transfer = {.staging_bytes = 1 << 16, .max_in_flight_bytes = 0}});
  rig.valve.hold(Kind::kCopyD2H);
  ASSERT_EQ(rig.store(1, Rig::kDense, blocks_to_slots(0, 0, 1)), 1U);
  EXPECT_EQ(rig.engine->gather(*rig.compute, TransferId(2), Rig::kDense, blocks_to_slots(1, 1, 4)),
            4U);
  test_hooks::fail_nth_of("transfer.gather", 1);
  EXPECT_EQ(
      rig.engine->gather(*rig.compute, TransferId(2), Rig::kStrided, blocks_to_slots(1, 5, 4)), 4U);
  EXPECT_TRUE(rig.engine->seal(TransferId(2)));
  // It ends while the first still runs: its first part was dropped from the queue.
  std::vector<Completion> ends;
  await(
      [&] {
        ends = rig.engine->poll();
        return !ends.empty();
      },
      "the failed store");
  EXPECT_EQ(ends.at(0).transfer, TransferId(2));
  EXPECT_EQ(ends.at(0).outcome, Outcome::kFailed);
  rig.valve.open(Kind::kCopyD2H);
  EXPECT_EQ(rig.finish_one().outcome, Outcome::kDone);
  EXPECT_EQ(rig.engine->stats().ring_used_bytes, 0U);
}

TEST_F(FailureTest, AGatherThatNoEventMarksQuarantinesItsRingEntries) {
  Rig rig({.transfer = {.staging_bytes = 4 * Rig::kSlotBytes},
           .compute = RigOptions::Compute::kThread});
  rig.valve.hold(Kind::kGather);
  test_hooks::fail_nth_of("transfer.record_gather", 1);
  EXPECT_EQ(rig.store(1, Rig::kDense, blocks_to_slots(0, 0, 3)), 3U);
  const Completion end = rig.finish_one();
  EXPECT_EQ(end.outcome, Outcome::kFailed);
  EXPECT_NE(end.reason.find("record_gather"), std::string::npos) << end.reason;
  // The launch may still write them, now or much later.
  EXPECT_EQ(rig.engine->stats().ring_used_bytes, 3 * Rig::kSlotBytes);
  rig.engine.reset();  // May not free what the launch is about to write: ASan watches.
  rig.valve.open(Kind::kGather);
  EXPECT_TRUE(rig.compute->synchronize(kForever));
}

// The gather is in the stream, and no event marks it.
TEST_F(FailureTest, AGatherWhoseSumsCannotBeSentMayStillWriteTheRing) {
  for (const bool sleeps : {false, true}) {
    Rig rig({.transfer = {.staging_bytes = 1 << 16, .verify = Verification::kAll},
             .tags = true,
             .compute = RigOptions::Compute::kThread});
    rig.valve.hold(Kind::kGather);
    // What is submitted: clear, gather, send.
    test_hooks::fail_nth_of("gpu.host.submit", 3);
    EXPECT_EQ(rig.store(1, Rig::kDense, blocks_to_slots(0, 0, 3)), 3U);
    EXPECT_EQ(rig.finish_one().outcome, Outcome::kFailed);
    EXPECT_EQ(rig.engine->stats().ring_used_bytes, 3 * Rig::kSlotBytes);
    // May not free what the launch is about to write: ASan watches.
    if (sleeps) {
      EXPECT_TRUE(rig.engine->sleep(kForever));
    }
    rig.engine.reset();
    rig.valve.open(Kind::kGather);
    EXPECT_TRUE(rig.compute->synchronize(kForever));
  }
}

TEST_F(FailureTest, ACheckedLoadThatIsRefusedHalfWayIsWaitedFor) {
  Rig rig({.transfer = {.staging_bytes = 1 << 16,
                        .copy_path = gpu::CopyPath::kKernel,
                        .verify = Verification::kAll},
           .tags = true});
  rig.write_block(Rig::kDense, BlockId(0), 1);
  ASSERT_EQ(rig.store(1, Rig::kDense, blocks_to_slots(0, 0, 1)), 1U);
  ASSERT_EQ(rig.finish_one().outcome, Outcome::kDone);
  const Fence fence = rig.engine->fence(*rig.compute);
  const std::uint64_t num_fills = rig.valve.num_arrived(Kind::kFill);
  rig.valve.hold(Kind::kFill);
  // What is submitted: wait, record, the sums' clear, scatter.
  test_hooks::fail_nth_of("gpu.host.submit", 4);
  rig.engine->load(TransferId(2), Rig::kDense, blocks_to_slots(0, 0, 1), fence);
  await([&] { return rig.valve.num_arrived(Kind::kFill) == num_fills + 1; }, "the clear");
  EXPECT_FALSE(rig.engine->wait_idle(std::chrono::milliseconds(20)));
  rig.valve.open(Kind::kFill);
  EXPECT_EQ(rig.finish_one().outcome, Outcome::kFailed);
}

TEST_F(FailureTest, ACopyThatIsRefusedFailsItsTransferOnly) {
  for (const char* point : {"transfer.submit", "transfer.record"}) {
    for (std::uint64_t n = 1; n <= 3; ++n) {
      Rig rig;
      test_hooks::fail_nth_of(point, n);
      for (std::uint32_t i = 0; i < 3; ++i) {
        rig.write_block(Rig::kDense, BlockId(i), i);
        ASSERT_EQ(rig.store(i + 1, Rig::kDense, blocks_to_slots(i, i, 1)), 1U);
      }
      const auto ends = by_id(rig.finish());
      ASSERT_EQ(ends.size(), 3U);
      for (const auto& [id, end] : ends) {
        EXPECT_EQ(end.outcome, id == n ? Outcome::kFailed : Outcome::kDone) << point << ' ' << id;
      }
      EXPECT_NE(ends.at(n).reason.find(point), std::string::npos) << ends.at(n).reason;
      EXPECT_EQ(rig.engine->stats().ring_used_bytes, 0U);
    }
  }
}

// G7: the slot is the engine's again only when no device can touch it any more.
TEST_F(FailureTest, ACopyWithoutAnEventIsWaitedFor) {
  Rig rig;
  rig.write_block(Rig::kDense, BlockId(0), 1);
  rig.valve.hold(Kind::kCopyD2H);
  test_hooks::fail_nth_of("transfer.record", 1);
  ASSERT_EQ(rig.store(1, Rig::kDense, blocks_to_slots(0, 0, 1)), 1U);
  await([&] { return rig.valve.num_arrived(Kind::kCopyD2H) == 1; }, "the copy");
  EXPECT_FALSE(rig.engine->wait_idle(std::chrono::milliseconds(20)));
  EXPECT_EQ(rig.engine->stats().ring_used_bytes, Rig::kSlotBytes);
  rig.valve.open(Kind::kCopyD2H);
  EXPECT_EQ(rig.finish_one().outcome, Outcome::kFailed);
  EXPECT_EQ(rig.engine->stats().ring_used_bytes, 0U);
}

TEST_F(FailureTest, ACopyRefusedHalfWayIsWaitedFor) {
  Rig rig({.fragment_bytes = {std::vector<std::uint64_t>(gpu::kMaxBatchRuns + 1, 2)},
           .num_blocks = 2,
           .num_slots = 2});
  const Fence fence = rig.engine->fence(*rig.compute);
  rig.valve.hold(Kind::kCopyH2D);
  // What is submitted: wait, record, first copy, second copy.
  test_hooks::fail_nth_of("gpu.host.submit", 4);
  rig.engine->load(TransferId(1), SlabClassId(0), blocks_to_slots(0, 0, 1), fence);
  await([&] { return rig.valve.num_arrived(Kind::kCopyH2D) == 1; }, "the first copy");
  EXPECT_FALSE(rig.engine->wait_idle(std::chrono::milliseconds(20)));
  rig.valve.open(Kind::kCopyH2D);
  EXPECT_EQ(rig.finish_one().outcome, Outcome::kFailed);
  EXPECT_EQ(rig.valve.num_arrived(Kind::kCopyH2D), 1U);
}

TEST_F(FailureTest, ARefusedStoreCopyStillWaitsForItsGather) {
  Rig rig({.compute = RigOptions::Compute::kThread});
  rig.valve.hold(Kind::kGather);
  test_hooks::fail_nth_of("transfer.submit", 1);
  std::atomic<int> submitted{0};
  test_hooks::on_pause("transfer.before_submit", [&] { ++submitted; });
  ASSERT_EQ(rig.store(1, Rig::kDense, blocks_to_slots(0, 0, 1)), 1U);
  await([&] { return submitted == 1; }, "submission");
  EXPECT_FALSE(rig.engine->wait_idle(std::chrono::milliseconds(20)));
  EXPECT_EQ(rig.engine->stats().ring_used_bytes, Rig::kSlotBytes) << "the gather may still write";
  rig.valve.open(Kind::kGather);
  EXPECT_EQ(rig.finish_one().outcome, Outcome::kFailed);
  EXPECT_EQ(rig.engine->stats().ring_used_bytes, 0U);
}

TEST_F(FailureTest, LoadsBehindAFenceThatCouldNotBeRecordedFail) {
  Rig rig;
  test_hooks::fail_nth_of("transfer.fence", 1);
  rig.load(1, Rig::kDense, blocks_to_slots(0, 0, 2));
  const Completion end = rig.finish_one();
  EXPECT_EQ(end.outcome, Outcome::kFailed);
  EXPECT_NE(end.reason.find("transfer.fence"), std::string::npos) << end.reason;
  EXPECT_EQ(rig.valve.num_arrived(Kind::kCopyH2D), 0U);
}

TEST_F(FailureTest, LoadsBehindABrokenComputeStreamFail) {
  Rig rig;
  rig.valve.fail_nth(Kind::kFill, 1);
  rig.fill_on_compute(Rig::kDense, BlockId(0), 0);
  rig.load(1, Rig::kDense, blocks_to_slots(0, 0, 1));
  const Completion end = rig.finish_one();
  EXPECT_EQ(end.outcome, Outcome::kFailed);
  EXPECT_NE(end.reason.find("fence"), std::string::npos) << end.reason;
}

}  // namespace
}  // namespace kvferry::transfer
