// SPDX-License-Identifier: Apache-2.0
// A rank whose blocks have two sizes.
#include "worker_fixture.hpp"

namespace kvferry::connector {
namespace {

/// Blocks of the second class are the first fragment of those of the first: 48 of 128 bytes, so
/// that a chunk of two large ones has five of them with 16 bytes left.
class WorkerClassesTest : public WorkerTest {
 protected:
  static constexpr std::uint32_t kSmallBytes = 48;
  static constexpr std::uint32_t kChunks = 8;

  WorkerClassesTest() {
    setup_.num_slots = kChunks;
    setup_.slots_per_chunk = {2, 5};
    start(setup_);
  }
  [[nodiscard]] static StoreOrder small_store(std::uint64_t transfer,
                                              const std::vector<BlockSlot>& blocks) {
    StoreOrder order = store(transfer, blocks);
    order.slab_class = SlabClassId(1);
    return order;
  }
  void expect_small_content(std::uint32_t block, std::uint8_t version, std::uint8_t behind) {
    for (std::size_t i = 0; i < kBlockBytes; ++i) {
      ASSERT_EQ(*at(block, i), content(i < kSmallBytes ? version : behind, i))
          << "byte " << i << " of block " << block;
    }
  }

  Setup setup_;
};

TEST_F(WorkerClassesTest, TellsTheSizesOfItsSlots) {
  bind_and_save(next_plan());
  collect_ends(0, 0);
  ASSERT_TRUE(report_.topology);
  ASSERT_EQ(report_.topology->classes.size(), 2U);
  EXPECT_EQ(report_.topology->classes[0].slot_bytes, kBlockBytes);
  EXPECT_EQ(report_.topology->classes[0].slots_per_chunk, 2U);
  EXPECT_EQ(report_.topology->classes[1].slot_bytes, kSmallBytes);
  EXPECT_EQ(report_.topology->classes[1].slots_per_chunk, 5U);
  EXPECT_EQ(report_.topology->num_chunks, kChunks);
  EXPECT_EQ(report_.topology->max_chunks, kChunks);
  EXPECT_EQ(engine_->num_slots(), 2 * kChunks);
  EXPECT_EQ(engine_->max_slots(), 2 * kChunks);
  EXPECT_EQ(engine_->slot_bytes(), kBlockBytes);
}

TEST_F(WorkerClassesTest, ItsRingIsCountedInBlocksOfTheLargestClassWhicheverItIs) {
  setup_.slot_bytes = {kBlockBytes, 2 * kBlockBytes};
  start(setup_);
  bind_and_save(next_plan());
  collect_ends(0, 0);
  ASSERT_TRUE(report_.topology);
  EXPECT_EQ(report_.topology->ring_blocks, setup_.ring_blocks / 2);
}

TEST_F(WorkerClassesTest, BlocksOfBothSizesComeBackFromChunksOfTheirOwn) {
  for (std::uint32_t i = 0; i < 12; ++i) write(i, static_cast<std::uint8_t>(10 + i));
  StepPlan stores = next_plan();
  stores.stores.push_back(store(1, pairs(0, 0, 6)));         // Chunks 0 to 2.
  stores.stores.push_back(small_store(2, pairs(6, 15, 6)));  // Chunks 3 and 4.
  bind_and_save(stores);
  collect_ends(2, 0);
  for (std::uint32_t i = 0; i < 12; ++i) write(i, 99);
  StepPlan loads = next_plan();
  loads.loads.push_back(load(3, pairs(0, 0, 6)));
  loads.loads.back().parts.push_back({SlabClassId(1), pairs(6, 15, 6)});
  bind_and_save(loads);
  collect_ends(2, 1);
  for (std::uint32_t i = 0; i < 6; ++i) expect_content(i, static_cast<std::uint8_t>(10 + i));
  for (std::uint32_t i = 6; i < 12; ++i) {
    expect_small_content(i, static_cast<std::uint8_t>(10 + i), 99);
  }
}

TEST_F(WorkerClassesTest, ASlotBehindThoseOfItsClassIsRefused) {
  const StepPlan right = next_plan();
  StepPlan wrong = right;
  wrong.stores.push_back(store(1, pairs(0, 2 * kChunks, 1)));
  expect_refused(wrong, {"slot 16", "16 slots"});
  wrong = right;
  wrong.stores.push_back(small_store(1, pairs(0, 5 * kChunks, 1)));
  expect_refused(wrong, {"slot 40", "40 slots"});
  wrong = right;
  wrong.loads.push_back(load(1, pairs(0, 0, 1)));
  wrong.loads.back().parts.push_back({SlabClassId(1), pairs(0, 5 * kChunks, 1)});
  expect_refused(wrong, {"slot 40", "40 slots"});
  StepPlan last = right;
  last.stores.push_back(small_store(1, pairs(0, 5 * kChunks - 1, 1)));
  bind_and_save(last);
  collect_ends(1, 0);
}

TEST_F(WorkerClassesTest, ARankThatIsToldAnotherNumberOfClassesIsRefused) {
  setup_.slots_per_chunk = {2, 5, 1};
  EXPECT_THROW(start(setup_), ConfigError);
}

}  // namespace
}  // namespace kvferry::connector
