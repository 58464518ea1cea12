// SPDX-License-Identifier: Apache-2.0
#include "coalesce_runs.hpp"

#include "rig.hpp"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace kvferry::transfer {
namespace {

TEST(RunListTest, MergesOnlyWhatIsAdjacentOnBothSides) {
  RunList list;
  list.add({.destination = 100, .source = 500, .bytes = 10}, PieceId(0));
  list.add({.destination = 110, .source = 510, .bytes = 5}, PieceId(0));  // Both: merged.
  list.add({.destination = 115, .source = 600, .bytes = 5}, PieceId(0));  // Destination only.
  list.add({.destination = 200, .source = 605, .bytes = 5}, PieceId(0));  // Source only.
  list.add({.destination = 195, .source = 600, .bytes = 5}, PieceId(0));  // Backwards.
  const std::vector<gpu::CopyRun> runs = std::move(list).take();
  ASSERT_EQ(runs.size(), 4U);
  EXPECT_EQ(runs[0].destination, 100U);
  EXPECT_EQ(runs[0].source, 500U);
  EXPECT_EQ(runs[0].bytes, 15U);
}

TEST(RunListTest, NeverMergesAcrossRegisteredPieces) {
  RunList list;
  list.add({.destination = 100, .source = 500, .bytes = 10}, PieceId(0));
  list.add({.destination = 110, .source = 510, .bytes = 10}, PieceId(1));
  list.add({.destination = 120, .source = 520, .bytes = 10}, PieceId(1));
  const std::vector<gpu::CopyRun> runs = std::move(list).take();
  ASSERT_EQ(runs.size(), 2U);
  EXPECT_EQ(runs[0].bytes, 10U);
  EXPECT_EQ(runs[1].bytes, 20U);
}

class CoalesceRunsTest : public TransferTest {
 protected:
  std::vector<gpu::CopyRun> runs_of(TransferKind kind, SlabClassId slab_class,
                                    const std::vector<BlockSlot>& blocks) {
    const BlockClass of{rig_.geometries[slab_class.value()],
                        cpu_tier::ArenaSlots(*rig_.arena, 1, Rig::kSlotBytes)};
    Piece piece;
    piece.kind = kind;
    piece.of = &of;
    piece.blocks = blocks;
    piece.region = {.ticket = 1,
                    .address = kRing,
                    .entry_bytes = of.geometry.packed_bytes,
                    .num_entries = static_cast<std::uint32_t>(blocks.size())};
    return coalesce_runs(piece);
  }

  static constexpr std::uintptr_t kRing = 0x10000;
  Rig rig_;
};

TEST_F(CoalesceRunsTest, StoresNeighbouringSlotsAsOneRun) {
  const auto runs = runs_of(TransferKind::kStore, Rig::kDense, blocks_to_slots(7, 3, 5));
  ASSERT_EQ(runs.size(), 1U);
  EXPECT_EQ(runs[0].source, kRing);
  EXPECT_EQ(runs[0].destination, rig_.arena->chunk_address(ChunkId(3)));
  EXPECT_EQ(runs[0].bytes, 5 * Rig::kSlotBytes);
}

TEST_F(CoalesceRunsTest, StoresBlocksSmallerThanASlotOneByOne) {
  const auto runs = runs_of(TransferKind::kStore, Rig::kStrided, blocks_to_slots(7, 3, 5));
  ASSERT_EQ(runs.size(), 5U);
  EXPECT_EQ(runs[4].source, kRing + 4 * 128);
  EXPECT_EQ(runs[4].destination, rig_.arena->chunk_address(ChunkId(7)));
  EXPECT_EQ(runs[4].bytes, 128U);
}

TEST_F(CoalesceRunsTest, SplitsWhereTheArenaIsRegisteredInTwoPieces) {
  ASSERT_EQ(rig_.arena->chunks_per_piece(), 64U);
  const auto runs = runs_of(TransferKind::kStore, Rig::kDense, blocks_to_slots(0, 60, 8));
  ASSERT_EQ(runs.size(), 2U);
  EXPECT_EQ(runs[0].bytes, 4 * Rig::kSlotBytes);
  EXPECT_EQ(runs[1].destination, rig_.arena->chunk_address(ChunkId(64)));
  const auto loads = runs_of(TransferKind::kLoad, Rig::kDense, blocks_to_slots(0, 60, 8));
  ASSERT_EQ(loads.size(), 2U);
  EXPECT_EQ(loads[1].source, rig_.arena->chunk_address(ChunkId(64)));
}

TEST_F(CoalesceRunsTest, LoadsDenseNeighboursAsOneRun) {
  const auto runs = runs_of(TransferKind::kLoad, Rig::kDense, blocks_to_slots(7, 3, 5));
  ASSERT_EQ(runs.size(), 1U);
  EXPECT_EQ(runs[0].source, rig_.arena->chunk_address(ChunkId(3)));
  EXPECT_EQ(runs[0].destination, rig_.geometries[1].fragment_address(0, BlockId(7)));
  EXPECT_EQ(runs[0].bytes, 5 * Rig::kSlotBytes);
}

TEST_F(CoalesceRunsTest, LoadsEachFragmentToItsPlace) {
  const auto runs = runs_of(TransferKind::kLoad, Rig::kStrided, blocks_to_slots(7, 3, 2));
  ASSERT_EQ(runs.size(), 6U);
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const std::size_t f = i % 3;
    const auto n = static_cast<std::uint32_t>(i / 3);
    EXPECT_EQ(runs[i].destination, rig_.geometries[0].fragment_address(f, BlockId(7 + n)));
    EXPECT_EQ(runs[i].source,
              rig_.arena->chunk_address(ChunkId(3 + n)) + rig_.geometries[0].packed_offsets[f]);
    EXPECT_EQ(runs[i].bytes, rig_.geometries[0].fragments[f].bytes);
  }
}

}  // namespace
}  // namespace kvferry::transfer
