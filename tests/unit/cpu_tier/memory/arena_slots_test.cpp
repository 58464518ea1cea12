// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/memory/arena_slots.hpp"

#include "kvferry/base/error.hpp"
#include "kvferry/gpu/host_link.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>

namespace kvferry::cpu_tier {
namespace {

class ArenaSlotsTest : public ::testing::Test {
 protected:
  static constexpr std::uint64_t kChunkBytes = 3000;
  std::unique_ptr<gpu::Device> device_ = gpu::make_host_device();
  /// Chunks of one registration each would be lcm(3000, 4096) bytes: 512 chunks.
  Arena arena_{*device_, kChunkBytes, 1024, {.pinned_piece_bytes = 1, .max_registration_bytes = 1}};
};

TEST_F(ArenaSlotsTest, ASlotLiesInItsChunkBehindThoseBefore) {
  const ArenaSlots slots(arena_, 4, 700);
  EXPECT_EQ(slots.slot_bytes(), 700U);
  EXPECT_EQ(slots.num_ready(), 4 * 1024U);
  for (const std::uint32_t number : {0U, 3U, 4U, 4095U}) {
    const ChunkId chunk(number / 4);
    const std::uint64_t offset = number % 4 * 700;
    EXPECT_EQ(slots.address(SlotId(number)), arena_.chunk_address(chunk) + offset);
    EXPECT_EQ(slots.device_address(SlotId(number)), arena_.chunk_device_address(chunk) + offset);
  }
}

TEST_F(ArenaSlotsTest, ASlotIsInThePieceOfItsChunk) {
  ASSERT_EQ(arena_.chunks_per_piece(), 512U);
  const ArenaSlots slots(arena_, 4, 700);
  EXPECT_EQ(slots.piece_of(SlotId(0)), PieceId(0));
  EXPECT_EQ(slots.piece_of(SlotId(4 * 512 - 1)), PieceId(0));
  EXPECT_EQ(slots.piece_of(SlotId(4 * 512)), PieceId(1));
}

TEST_F(ArenaSlotsTest, SlotsThatDoNotFitIntoAChunkAreRefused) {
  EXPECT_NO_THROW(ArenaSlots(arena_, 3, 1000));
  EXPECT_THROW(ArenaSlots(arena_, 3, 1001), ConfigError);
  EXPECT_THROW(ArenaSlots(arena_, 0, 1000), ConfigError);
  EXPECT_THROW(ArenaSlots(arena_, 1, 0), ConfigError);
}

class ArenaTagsTest : public ::testing::Test {
 protected:
  static constexpr std::uint32_t kNumChunks = 2048;
  static constexpr std::uint32_t kTagsPerChunk = 5;
  std::unique_ptr<gpu::Device> device_ = gpu::make_host_device();
  Arena arena_{*device_, 4096, kNumChunks, {.tags_per_chunk = kTagsPerChunk}};
};

TEST_F(ArenaTagsTest, EachSlotHasAWordThatIsZeroUntilItIsWritten) {
  const ArenaSlots slots(arena_, kTagsPerChunk, 800);
  ASSERT_TRUE(slots.has_tags());
  for (std::uint32_t i = 0; i < kNumChunks * kTagsPerChunk; ++i) {
    EXPECT_EQ(slots.tag(SlotId(i)).exchange(i + 1), 0U);
  }
  for (std::uint32_t i = 0; i < kNumChunks * kTagsPerChunk; ++i) {
    EXPECT_EQ(slots.tag(SlotId(i)).load(), i + 1);
  }
}

// A chunk that changes its class must not reach another chunk's words.
TEST_F(ArenaTagsTest, SlotsOfEachClassHaveTheWordsOfTheirChunk) {
  const ArenaSlots many(arena_, 5, 800);
  const ArenaSlots few(arena_, 2, 2000);
  EXPECT_EQ(&few.tag(SlotId(2 * 7)), &many.tag(SlotId(5 * 7)));
  EXPECT_EQ(&few.tag(SlotId(2 * 7 + 1)), &many.tag(SlotId(5 * 7 + 1)));
  EXPECT_EQ(&few.tag(SlotId(2 * 8)), &many.tag(SlotId(5 * 8)));
}

TEST_F(ArenaTagsTest, AClassWithMoreSlotsThanTagsIsRefused) {
  EXPECT_THROW(ArenaSlots(arena_, 6, 600), ConfigError);
  EXPECT_NO_THROW(ArenaSlots(arena_, 5, 600));
}

TEST_F(ArenaTagsTest, AreInNoChunk) {
  const auto of = [&](std::uint32_t chunk, std::uint32_t index) {
    return reinterpret_cast<std::uintptr_t>(&arena_.tag(ChunkId(chunk), index));
  };
  const std::uintptr_t begin = arena_.chunk_address(ChunkId(0));
  const std::uintptr_t end = arena_.chunk_address(ChunkId(kNumChunks - 1)) + 4096;
  EXPECT_TRUE(of(kNumChunks - 1, kTagsPerChunk - 1) < begin || of(0, 0) >= end);
}

TEST_F(ArenaSlotsTest, AnArenaThatWasAskedForNoTagsHasNone) {
  EXPECT_FALSE(ArenaSlots(arena_, 4, 700).has_tags());
}

}  // namespace
}  // namespace kvferry::cpu_tier
