// SPDX-License-Identifier: Apache-2.0
// Blocks of several sizes whose slots share chunks of one arena.
#include "kvferry/base/error.hpp"

#include "rig.hpp"

#include <array>
#include <cstdint>
#include <vector>

namespace kvferry::transfer {
namespace {

/// A chunk has one block of 128 bytes, or two of 47 with 34 bytes behind them, or three of 40 with
/// 8. Class 1 is the one with gaps, class 2 lies dense.
constexpr std::array<std::uint32_t, 3> kSlotsPerChunk{1, 2, 3};
constexpr std::uint32_t kNumChunks = 96;

class SlabClassTest : public TransferTest, public ::testing::WithParamInterface<gpu::CopyPath> {
 protected:
  static RigOptions options() {
    RigOptions options;
    options.fragment_bytes = {{40, 24, 64}, {17, 30}, {40}};
    options.num_slots = kNumChunks;
    options.slots_per_chunk.assign(kSlotsPerChunk.begin(), kSlotsPerChunk.end());
    options.transfer.copy_path = GetParam();
    return options;
  }
  /// Chunks of class c: [32 c, 32 c + 32). Slots of all of them, in the class's numbers.
  static std::uint32_t first_slot(std::uint32_t c) { return 32 * c * kSlotsPerChunk[c]; }
  static std::uint32_t num_slots(std::uint32_t c) { return 32 * kSlotsPerChunk[c]; }
};

TEST_P(SlabClassTest, StoresEachClassIntoSlotsOfItsSizeAndTouchesNoOther) {
  Rig rig(options());
  for (std::uint32_t c = 0; c < 3; ++c) {
    for (std::uint32_t i = 0; i < num_slots(c); ++i) {
      rig.write_slot(SlabClassId(c), SlotId(first_slot(c) + i), 9000 + i);
    }
    for (std::uint32_t b = 0; b < 20; ++b) rig.write_block(SlabClassId(c), BlockId(b), 100 * c + b);
  }
  for (std::uint32_t c = 0; c < 3; ++c) {
    // From the second slot on: over the ends of chunks.
    ASSERT_EQ(rig.store(c + 1, SlabClassId(c), blocks_to_slots(0, first_slot(c) + 1, 20)), 20U);
  }
  for (const Completion& end : rig.finish()) EXPECT_EQ(end.outcome, Outcome::kDone);
  for (std::uint32_t c = 0; c < 3; ++c) {
    for (std::uint32_t i = 0; i < num_slots(c); ++i) {
      const std::uint64_t version = i >= 1 && i < 21 ? 100 * c + i - 1 : 9000 + i;
      ASSERT_EQ(rig.slot(SlabClassId(c), SlotId(first_slot(c) + i)),
                pattern_bytes(version, rig.packed_bytes(SlabClassId(c))))
          << "class " << c << " slot " << i;
    }
  }
}

TEST_P(SlabClassTest, ALoadOfSeveralClassesEndsOnceWithTheBytesOfAll) {
  Rig rig(options());
  std::vector<std::vector<BlockSlot>> blocks(3);
  std::vector<LoadPart> parts;
  std::uint64_t bytes = 0;
  for (std::uint32_t c = 0; c < 3; ++c) {
    const SlabClassId slab_class(c);
    for (std::uint32_t i = 0; i < num_slots(c); ++i) {
      rig.write_slot(slab_class, SlotId(first_slot(c) + i), 1000 * c + i);
    }
    for (std::uint32_t b = 0; b < 64; ++b) rig.write_block(slab_class, BlockId(b), 7777);
    blocks[c] = blocks_to_slots(2, first_slot(c), num_slots(c) - c);
    if (blocks[c].size() > 60) blocks[c].resize(60);
    parts.push_back({slab_class, blocks[c]});
    bytes += blocks[c].size() * rig.packed_bytes(slab_class);
  }
  rig.engine->load(TransferId(1), parts, rig.engine->fence(*rig.compute));
  const Completion end = rig.finish_one();
  EXPECT_EQ(end.outcome, Outcome::kDone);
  EXPECT_EQ(end.bytes, bytes);
  for (std::uint32_t c = 0; c < 3; ++c) {
    for (std::uint32_t b = 0; b < 64; ++b) {
      const bool loaded = b >= 2 && b < 2 + blocks[c].size();
      ASSERT_EQ(rig.block(SlabClassId(c), BlockId(b)),
                pattern_bytes(loaded ? 1000 * c + b - 2 : 7777, rig.packed_bytes(SlabClassId(c))))
          << "class " << c << " block " << b;
    }
  }
}

TEST_P(SlabClassTest, OnePartThatDoesNotExistRefusesTheWholeLoad) {
  Rig rig(options());
  const std::vector<BlockSlot> good = blocks_to_slots(0, 0, 1);
  for (std::uint32_t c = 0; c < 3; ++c) {
    const std::vector<BlockSlot> bad = blocks_to_slots(0, kNumChunks * kSlotsPerChunk[c], 1);
    const std::vector<LoadPart> parts{{SlabClassId(0), good}, {SlabClassId(c), bad}};
    const Fence fence = rig.engine->fence(*rig.compute);
    EXPECT_THROW(rig.engine->load(TransferId(1), parts, fence), ProtocolError);
    const std::vector<BlockSlot> last = blocks_to_slots(0, kNumChunks * kSlotsPerChunk[c] - 1, 1);
    rig.load(2 + c, SlabClassId(c), last);
    EXPECT_EQ(rig.finish_one().outcome, Outcome::kDone);
  }
}

INSTANTIATE_TEST_SUITE_P(Paths, SlabClassTest,
                         ::testing::Values(gpu::CopyPath::kPerRun, gpu::CopyPath::kBatch,
                                           gpu::CopyPath::kKernel, gpu::CopyPath::kStaged),
                         [](const auto& tested) {
                           return std::string(gpu::to_string(tested.param));
                         });

}  // namespace
}  // namespace kvferry::transfer
