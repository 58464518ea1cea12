// SPDX-License-Identifier: Apache-2.0
#include "gather_stage.hpp"

#include "kvferry/base/test_hooks.hpp"

#include "rig.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

namespace kvferry::transfer {
namespace {

class GatherStageTest : public TransferTest {
 protected:
  void TearDown() override {
    for (const std::uint64_t ticket : taken_) ring_.release(ticket);
    EXPECT_EQ(ring_.used_bytes(), 0U) << "a region leaked";
  }

  GatherResult gather(std::vector<BlockSlot> blocks) {
    GatherResult result = stage_.gather(*rig_.compute, TransferId(1), Rig::kDense, dense_, blocks);
    for (const Piece& piece : result.pieces) taken_.push_back(piece.region.ticket);
    return result;
  }

  Rig rig_;
  StagingRing ring_{*rig_.device, 8 * Rig::kSlotBytes};
  BlockClass dense_{rig_.geometries[Rig::kDense.value()],
                    cpu_tier::ArenaSlots(*rig_.arena, 1, Rig::kSlotBytes)};
  GatherStage stage_{*rig_.device, ring_, nullptr, 3 * Rig::kSlotBytes};
  std::vector<std::uint64_t> taken_;
};

TEST_F(GatherStageTest, PacksThePrefixThatFitsInTheOrderOfItsSlots) {
  std::vector<BlockSlot> blocks;
  for (std::uint32_t i = 0; i < 10; ++i) {
    rig_.write_block(Rig::kDense, BlockId(i), i);
    blocks.push_back({.block = BlockId(i), .slot = SlotId(40 - i)});
  }
  const GatherResult result = gather(blocks);
  EXPECT_EQ(result.num_gathered, 8U);
  ASSERT_EQ(result.pieces.size(), 3U);
  std::uint32_t slot = 33;  // Those of blocks 8 and 9 did not fit.
  for (const Piece& piece : result.pieces) {
    EXPECT_EQ(piece.after, result.pieces[0].after) << "one launch, one event";
    ASSERT_EQ(piece.blocks.size(), piece.region.num_entries);
    EXPECT_EQ(piece.bytes, piece.blocks.size() * Rig::kSlotBytes);
    for (std::size_t i = 0; i < piece.blocks.size(); ++i, ++slot) {
      EXPECT_EQ(piece.blocks[i].slot, SlotId(slot));
      EXPECT_EQ(piece.blocks[i].block, BlockId(40 - slot));
      Bytes entry(Rig::kSlotBytes);
      std::memcpy(entry.data(),
                  reinterpret_cast<const void*>(piece.region.address + i * Rig::kSlotBytes),
                  entry.size());
      EXPECT_EQ(entry, pattern_bytes(40 - slot, Rig::kSlotBytes));
    }
  }
}

TEST_F(GatherStageTest, AFailedLaunchGivesBackTheRegionsOfThoseThatFollow) {
  // Taken: entries 2 to 4. Free: three behind them and two before, so that eight blocks make two
  // launches.
  const RingRegion first = ring_.allocate(Rig::kSlotBytes, 2);
  const RingRegion middle = ring_.allocate(Rig::kSlotBytes, 3);
  ring_.release(first.ticket);
  test_hooks::fail_nth_of("transfer.gather", 1);
  const GatherResult result = gather(blocks_to_slots(0, 0, 8));
  EXPECT_EQ(result.num_gathered, 3U) << "those of the failed launch, not those behind it";
  EXPECT_TRUE(result.pieces.empty());
  EXPECT_NE(result.failure, "");
  taken_ = {middle.ticket};
}

TEST_F(GatherStageTest, AFailedLaunchKeepsThoseThatWentBefore) {
  const RingRegion first = ring_.allocate(Rig::kSlotBytes, 2);
  const RingRegion middle = ring_.allocate(Rig::kSlotBytes, 3);
  ring_.release(first.ticket);
  test_hooks::fail_nth_of("transfer.gather", 2);
  const GatherResult result = gather(blocks_to_slots(0, 0, 8));
  EXPECT_EQ(result.num_gathered, 5U);
  ASSERT_EQ(result.pieces.size(), 1U);
  EXPECT_EQ(result.pieces[0].region.num_entries, 3U);
  EXPECT_NE(result.pieces[0].after, nullptr);
  EXPECT_NE(result.failure, "");
  taken_.push_back(middle.ticket);
}

}  // namespace
}  // namespace kvferry::transfer
