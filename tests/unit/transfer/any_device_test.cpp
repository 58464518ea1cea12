// SPDX-License-Identifier: Apache-2.0
// Stores and loads on any back end, with test hooks or without: what a machine with a GPU runs.
#include "rig.hpp"
#include "test_backend.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace kvferry::transfer {
namespace {

using Kind = Valve::Kind;

TEST_F(StoreTest, CarriesEveryByteOfEveryGroup) {
  Rig rig({.backend = gpu::test_backend()});
  for (std::uint32_t b = 0; b < 64; ++b) {
    for (std::uint32_t g = 0; g < 3; ++g) rig.write_block(SlabClassId(g), BlockId(b), g * 1000 + b);
  }
  // Slots of all three registered pieces, in an order of their own.
  std::vector<std::vector<BlockSlot>> plans(3);
  for (std::uint32_t i = 0; i < 40; ++i) {
    for (std::uint32_t g = 0; g < 3; ++g) {
      plans[g].push_back(
          {.block = BlockId((i * 7 + g) % 64), .slot = SlotId((i * 3 + g + 20 * g) * 17 % 160)});
    }
  }
  for (std::uint32_t g = 0; g < 3; ++g) {
    ASSERT_EQ(rig.store(g + 1, SlabClassId(g), plans[g]), 40U);
    const Completion end = rig.finish_one();
    EXPECT_EQ(end.transfer, TransferId(g + 1));
    EXPECT_EQ(end.kind, TransferKind::kStore);
    EXPECT_EQ(end.outcome, Outcome::kDone);
    EXPECT_EQ(end.reason, "");
    EXPECT_EQ(end.bytes, 40 * rig.packed_bytes(SlabClassId(g)));
    for (const auto& [block, slot, identity] : plans[g]) {
      ASSERT_EQ(rig.slot(SlabClassId(g), slot),
                pattern_bytes(g * 1000 + block.value(), rig.packed_bytes(SlabClassId(g))))
          << "class " << g << " slot " << slot.value();
    }
  }
  EXPECT_EQ(rig.engine->stats().ring_used_bytes, 0U);
  EXPECT_EQ(rig.engine->stats().stored_blocks, 120U);
  EXPECT_EQ(rig.engine->stats().stored_bytes, 40U * (128 + 192 + 47));
}

// vllm#45704: the next step overwrites a block whose store is still under way.
TEST_F(StoreTest, StoresWhatTheBlocksHeldWhenTheyWereGathered) {
  for (const auto compute : {RigOptions::Compute::kInline, RigOptions::Compute::kThread}) {
    Rig rig({.backend = gpu::test_backend(), .compute = compute});
    for (std::uint32_t b = 0; b < 8; ++b) rig.write_block(Rig::kStrided, BlockId(b), b);
    rig.valve.hold(Kind::kCopyD2H);
    if (compute == RigOptions::Compute::kThread) rig.valve.hold(Kind::kGather);
    ASSERT_EQ(rig.store(1, Rig::kStrided, blocks_to_slots(0, 0, 8)), 8U);
    for (std::uint32_t b = 0; b < 8; ++b) rig.fill_on_compute(Rig::kStrided, BlockId(b), 0);
    rig.valve.open(Kind::kGather);
    ASSERT_TRUE(rig.compute->synchronize(kForever));
    EXPECT_EQ(rig.block(Rig::kStrided, BlockId(3)), Bytes(128, 0));
    rig.valve.open(Kind::kCopyD2H);
    EXPECT_EQ(rig.finish_one().outcome, Outcome::kDone);
    for (std::uint32_t b = 0; b < 8; ++b) {
      EXPECT_EQ(rig.slot(Rig::kStrided, SlotId(b)), pattern_bytes(b, 128));
    }
  }
}

TEST_F(LoadTest, CarriesEveryByteAndTouchesNothingElse) {
  Rig rig({.backend = gpu::test_backend(), .transfer = {.piece_bytes = 1000}});
  for (std::uint32_t g = 0; g < 3; ++g) {
    for (std::uint32_t s = 0; s < 160; ++s) rig.write_slot(SlabClassId(g), SlotId(s), g * 1000 + s);
    for (std::uint32_t b = 0; b < 64; ++b) rig.write_block(SlabClassId(g), BlockId(b), 7777);
    std::vector<BlockSlot> blocks;
    for (std::uint32_t i = 0; i < 30; ++i) {
      blocks.push_back({.block = BlockId(i * 11 % 64), .slot = SlotId((i * 37 + g) % 160)});
    }
    rig.load(g + 1, SlabClassId(g), blocks);
    const Completion end = rig.finish_one();
    EXPECT_EQ(end.transfer, TransferId(g + 1));
    EXPECT_EQ(end.kind, TransferKind::kLoad);
    EXPECT_EQ(end.outcome, Outcome::kDone);
    EXPECT_EQ(end.bytes, 30 * rig.packed_bytes(SlabClassId(g)));
    std::vector<std::uint64_t> versions(64, 7777);
    for (const auto& [block, slot, identity] : blocks)
      versions[block.value()] = g * 1000 + slot.value();
    for (std::uint32_t b = 0; b < 64; ++b) {
      ASSERT_EQ(rig.block(SlabClassId(g), BlockId(b)),
                pattern_bytes(versions[b], rig.packed_bytes(SlabClassId(g))))
          << "class " << g << " block " << b;
    }
  }
  // The gaps between the fragments as well.
  for (std::size_t f = 0; f < 3; ++f) {
    const gpu::Fragment& fragment = rig.geometries[0].fragments[f];
    EXPECT_EQ(rig.device_byte(fragment.base + fragment.bytes), 0xee);
  }
  EXPECT_EQ(rig.engine->stats().loaded_blocks, 90U);
  EXPECT_EQ(rig.engine->stats().loaded_bytes, 30U * (128 + 192 + 47));
}

TEST_F(LoadTest, LoadsOneSlotIntoSeveralBlocks) {
  Rig rig({.backend = gpu::test_backend()});
  rig.write_slot(Rig::kStrided, SlotId(9), 3);
  rig.load(1, Rig::kStrided, {{BlockId(4), SlotId(9)}, {BlockId(1), SlotId(9)}});
  EXPECT_EQ(rig.finish_one().outcome, Outcome::kDone);
  EXPECT_EQ(rig.block(Rig::kStrided, BlockId(4)), pattern_bytes(3, 128));
  EXPECT_EQ(rig.block(Rig::kStrided, BlockId(1)), pattern_bytes(3, 128));
}

}  // namespace
}  // namespace kvferry::transfer
