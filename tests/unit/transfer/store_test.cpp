// SPDX-License-Identifier: Apache-2.0
#include "kvferry/base/error.hpp"
#include "kvferry/base/test_hooks.hpp"

#include "rig.hpp"
#include "test_backend.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <utility>
#include <vector>

namespace kvferry::transfer {
namespace {

using Kind = Valve::Kind;

TEST_F(StoreTest, GathersSeveralGroupsIntoOneTransfer) {
  Rig rig;
  rig.write_block(Rig::kStrided, BlockId(1), 11);
  rig.write_block(Rig::kDense, BlockId(2), 12);
  const std::vector<BlockSlot> strided = blocks_to_slots(1, 5, 1);
  const std::vector<BlockSlot> dense = blocks_to_slots(2, 6, 1);
  EXPECT_EQ(rig.engine->gather(*rig.compute, TransferId(1), Rig::kStrided, strided), 1U);
  EXPECT_EQ(rig.engine->gather(*rig.compute, TransferId(1), Rig::kDense, dense), 1U);
  // Both parts arrived, and still the transfer has not ended: it is not sealed.
  await([&] { return rig.engine->stats().stored_bytes == 128 + 192; }, "both copies");
  EXPECT_FALSE(rig.engine->wait_idle(std::chrono::nanoseconds(0)));
  EXPECT_TRUE(rig.engine->poll().empty());

  EXPECT_TRUE(rig.engine->seal(TransferId(1)));
  EXPECT_EQ(rig.finish_one().bytes, 128U + 192U);
  EXPECT_EQ(rig.slot(Rig::kStrided, SlotId(5)), pattern_bytes(11, 128));
  EXPECT_EQ(rig.slot(Rig::kDense, SlotId(6)), pattern_bytes(12, 192));
}

TEST_F(StoreTest, SealOfNothingGatheredSaysSo) {
  Rig rig;
  EXPECT_FALSE(rig.engine->seal(TransferId(1)));
  EXPECT_EQ(rig.engine->gather(*rig.compute, TransferId(2), Rig::kDense, {}), 0U);
  EXPECT_FALSE(rig.engine->seal(TransferId(2)));
  EXPECT_TRUE(rig.finish().empty());
}

TEST_F(StoreTest, WithoutARingStoresNothing) {
  Rig rig({.transfer = {.staging_bytes = 0}});
  EXPECT_EQ(rig.store(1, Rig::kDense, blocks_to_slots(0, 0, 4)), 0U);
  EXPECT_TRUE(rig.finish().empty());
}

// vllm#39306: the copy reads what is not written yet.
TEST_F(StoreTest, CopiesNothingBeforeTheGatherEnded) {
  Rig rig({.compute = RigOptions::Compute::kThread});
  rig.write_block(Rig::kDense, BlockId(0), 5);
  rig.valve.hold(Kind::kGather);
  std::atomic<int> submitted{0};
  test_hooks::on_pause("transfer.before_submit", [&] { ++submitted; });
  ASSERT_EQ(rig.store(1, Rig::kDense, blocks_to_slots(0, 0, 1)), 1U);
  await([&] { return submitted == 1; }, "submission");
  // Time enough for a copy that does not wait; one that does is not hurried by it.
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(rig.valve.num_arrived(Kind::kCopyD2H), 0U);
  rig.valve.open(Kind::kGather);
  EXPECT_EQ(rig.finish_one().outcome, Outcome::kDone);
  EXPECT_EQ(rig.slot(Rig::kDense, SlotId(0)), pattern_bytes(5, 192));
}

// TensorRT-LLM#15546: staging memory reused before its copy ended. LMCache#2942: a wait for staging
// memory.
TEST_F(StoreTest, TakesNothingWhileTheRingIsFullAndGoesOnAfterwards) {
  Rig rig({.transfer = {.staging_bytes = 8 * Rig::kSlotBytes, .piece_bytes = 3 * Rig::kSlotBytes}});
  for (std::uint32_t b = 0; b < 24; ++b) rig.write_block(Rig::kDense, BlockId(b), b);
  rig.valve.hold(Kind::kCopyD2H);
  EXPECT_EQ(rig.store(1, Rig::kDense, blocks_to_slots(0, 0, 10)), 8U) << "the prefix that fits";
  EXPECT_EQ(rig.engine->stats().ring_used_bytes, 8 * Rig::kSlotBytes);
  EXPECT_EQ(rig.store(2, Rig::kDense, blocks_to_slots(8, 8, 8)), 0U);

  rig.valve.open(Kind::kCopyD2H);
  EXPECT_EQ(rig.finish_one().transfer, TransferId(1));
  EXPECT_EQ(rig.engine->stats().ring_used_bytes, 0U);
  EXPECT_EQ(rig.store(3, Rig::kDense, blocks_to_slots(16, 16, 8)), 8U);
  EXPECT_EQ(rig.finish_one().outcome, Outcome::kDone);
  for (std::uint32_t b : {0, 7, 16, 23}) {
    EXPECT_EQ(rig.slot(Rig::kDense, SlotId(b)), pattern_bytes(b, 192)) << b;
  }
}

TEST_F(StoreTest, GivesRingMemoryBackPieceByPiece) {
  Rig rig({.transfer = {.staging_bytes = 4 * Rig::kSlotBytes,
                        .max_in_flight_bytes = 0,
                        .piece_bytes = Rig::kSlotBytes}});
  std::atomic<int> completed{0};
  test_hooks::on_pause("transfer.before_complete", [&] {
    // After the first piece ended, before anyone is told: its quarter of the ring is free, no more.
    if (++completed == 1) {
      EXPECT_EQ(rig.engine->stats().ring_used_bytes, 3 * Rig::kSlotBytes);
    }
  });
  EXPECT_EQ(rig.store(1, Rig::kDense, blocks_to_slots(0, 0, 4)), 4U);
  EXPECT_EQ(rig.finish_one().outcome, Outcome::kDone);
  EXPECT_EQ(completed, 4);
}

TEST_F(StoreTest, GathersAroundTheRingsEndInTwoLaunches) {
  Rig rig({.transfer = {.staging_bytes = 5 * Rig::kSlotBytes, .piece_bytes = Rig::kSlotBytes}});
  for (std::uint32_t b = 0; b < 20; ++b) rig.write_block(Rig::kDense, BlockId(b), 100 + b);
  std::atomic<bool> hold{true};
  std::atomic<int> passed{0};
  test_hooks::on_pause("transfer.before_complete", [&] {
    ++passed;
    while (hold) std::this_thread::yield();
  });
  ASSERT_EQ(rig.store(1, Rig::kDense, blocks_to_slots(0, 0, 3)), 3U);
  // Its first piece is back, its other two are taken: two entries behind them, one before.
  await([&] { return passed == 1; }, "the first piece");
  EXPECT_EQ(rig.store(2, Rig::kDense, blocks_to_slots(3, 3, 9)), 3U);
  EXPECT_EQ(rig.valve.num_arrived(Kind::kGather), 3U);
  hold = false;
  EXPECT_EQ(rig.finish().size(), 2U);
  for (std::uint32_t b = 0; b < 6; ++b) {
    EXPECT_EQ(rig.slot(Rig::kDense, SlotId(b)), pattern_bytes(100 + b, 192)) << b;
  }
}

TEST_F(StoreTest, LaunchesOncePerContiguousRegionWhateverThePieces) {
  Rig rig({.transfer = {.staging_bytes = 64 * Rig::kSlotBytes, .piece_bytes = Rig::kSlotBytes}});
  EXPECT_EQ(rig.store(1, Rig::kDense, blocks_to_slots(0, 0, 20)), 20U);
  EXPECT_EQ(rig.valve.num_arrived(Kind::kGather), 1U);
  EXPECT_EQ(rig.finish_one().outcome, Outcome::kDone);
  EXPECT_EQ(rig.valve.num_arrived(Kind::kCopyD2H), 20U);
}

TEST_F(StoreTest, BoundsTheBytesInFlight) {
  Rig rig({.transfer = {.staging_bytes = 64 * Rig::kSlotBytes,
                        .max_in_flight_bytes = 3 * Rig::kSlotBytes + 1,
                        .piece_bytes = Rig::kSlotBytes}});
  std::atomic<std::uint64_t> submitted{0};
  test_hooks::on_pause("transfer.before_submit", [&] { ++submitted; });
  rig.valve.hold(Kind::kCopyD2H);
  ASSERT_EQ(rig.store(1, Rig::kDense, blocks_to_slots(0, 0, 10)), 10U);
  await([&] { return submitted == 3; }, "three pieces");
  // A load passes through the same thread, which thereby had every chance to submit a fourth.
  rig.load(2, Rig::kDense, blocks_to_slots(20, 20, 1));
  await([&] { return !rig.engine->poll().empty(); }, "the load");
  EXPECT_EQ(submitted, 4U);
  const TransferStats stats = rig.engine->stats();
  EXPECT_EQ(stats.in_flight_bytes, 3 * Rig::kSlotBytes);
  EXPECT_EQ(stats.queued_bytes, 7 * Rig::kSlotBytes);
  rig.valve.open(Kind::kCopyD2H);
  EXPECT_EQ(rig.finish_one().bytes, 10 * Rig::kSlotBytes);
  EXPECT_EQ(submitted, 11U);
  EXPECT_EQ(rig.engine->stats().in_flight_bytes, 0U);
}

TEST_F(StoreTest, RefusesGroupsBlocksAndSlotsThatDoNotExist) {
  Rig rig;
  const auto gather = [&](SlabClassId slab_class, std::uint32_t block, std::uint32_t slot) {
    const auto blocks = blocks_to_slots(block, slot, 1);
    static_cast<void>(rig.engine->gather(*rig.compute, TransferId(1), slab_class, blocks));
  };
  EXPECT_THROW(gather(SlabClassId(3), 0, 0), ProtocolError);
  EXPECT_THROW(gather(Rig::kDense, 64, 0), ProtocolError);
  EXPECT_THROW(gather(Rig::kDense, 0, 160), ProtocolError);
  EXPECT_FALSE(rig.engine->seal(TransferId(1))) << "nothing of a refused call is queued";
}

TEST_F(StoreTest, RefusesABlockLargerThanASlot) {
  Rig rig;
  std::vector<gpu::BlockGeometry> geometries = {gpu::make_block_geometry(
      {{.base = 4096, .block_stride_bytes = 193, .bytes = Rig::kSlotBytes + 1}}, 4)};
  EXPECT_THROW(TransferEngine(*rig.device, geometries, *rig.arena, {}), ConfigError);
}

// TensorRT-LLM#9056: two blocks stored into one host slot.
TEST_F(StoreTest, TwoBlocksForOneSlotAreABrokenInvariant) {
  Rig rig;
  const std::vector<BlockSlot> blocks = {{BlockId(1), SlotId(7)}, {BlockId(2), SlotId(7)}};
  EXPECT_DEATH(
      static_cast<void>(rig.engine->gather(*rig.compute, TransferId(1), Rig::kDense, blocks)),
      "two blocks for slot 7");
}

}  // namespace
}  // namespace kvferry::transfer
