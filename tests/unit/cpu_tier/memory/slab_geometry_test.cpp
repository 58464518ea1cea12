// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/memory/slab_geometry.hpp"

#include "kvferry/base/error.hpp"

#include "byte_sizes.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace kvferry::cpu_tier {
namespace {

TEST(SlabGeometry, LessThanASlotIsLeftOfAChunk) {
  EXPECT_EQ(slots_per_chunk(64 * kMiB, 2 * kMiB), 32U);
  for (const std::uint64_t bytes :
       {kMiB * 3, kMiB * 63 / 10, kMiB + 1, kMiB * 64, std::uint64_t{7}}) {
    const std::uint64_t used = slots_per_chunk(64 * kMiB, bytes) * bytes;
    EXPECT_LE(used, 64 * kMiB);
    EXPECT_GT(used + bytes, 64 * kMiB);
  }
  EXPECT_THROW(static_cast<void>(slots_per_chunk(kMiB, 0)), ConfigError);
  EXPECT_THROW(static_cast<void>(slots_per_chunk(kMiB, kMiB + 1)), ConfigError);
}

SlabGeometry geometry(std::uint64_t arena_bytes, std::initializer_list<std::uint64_t> slot_bytes) {
  return slab_geometry(arena_bytes, std::vector(slot_bytes));
}

TEST(SlabGeometry, AChunkOfOneClassIsASlot) {
  EXPECT_EQ(geometry(50'999, {5000}), (SlabGeometry{10, {1}}));
}

TEST(SlabGeometry, ChunksGrowWithTheTierUpTo64Slots) {
  const auto chunks_of = [](std::uint64_t bytes) { return geometry(bytes, {1000, 300}); };
  EXPECT_EQ(chunks_of(1000), (SlabGeometry{1, {1, 3}}));
  EXPECT_EQ(chunks_of(128'000), (SlabGeometry{64, {2, 6}}));
  EXPECT_EQ(chunks_of(64'000 * 1000), (SlabGeometry{1000, {64, 213}}));
}

TEST(SlabGeometry, BehindTheSlotsOfAChunkIsLessThanOnePartInItsLargestSlots) {
  for (std::uint64_t small = 1; small <= 4096; small += 1 + small / 7) {
    for (const std::uint64_t share : {std::uint64_t{1} << 20, std::uint64_t{1} << 24}) {
      const SlabGeometry found = geometry(share, {4096, small});
      const std::uint64_t chunk_bytes = found.slots_per_chunk[0] * 4096U;
      const std::uint64_t wasted = chunk_bytes - found.slots_per_chunk[1] * small;
      EXPECT_LT(wasted * found.slots_per_chunk[0], chunk_bytes) << small << " in " << share;
      EXPECT_LE(found.num_chunks * chunk_bytes, share);
      EXPECT_GT((found.num_chunks + 1) * chunk_bytes, share);
    }
  }
}

TEST(SlabGeometry, ATierThatHoldsNothingOrAClassWithoutBytesIsAnError) {
  EXPECT_THROW(static_cast<void>(geometry(999, {1000})), ConfigError);
  EXPECT_THROW(static_cast<void>(geometry(999, {})), ConfigError);
  EXPECT_THROW(static_cast<void>(geometry(999, {0})), ConfigError);
  EXPECT_THROW(static_cast<void>(geometry(9999, {1000, 0})), ConfigError);
}

TEST(SlabGeometry, ASlotIsAtItsIndexOfItsChunk) {
  const SlotPlace place = place_of(SlotId(50), 16);
  EXPECT_EQ(place.chunk, ChunkId(3));
  EXPECT_EQ(place.index, 2U);
}

TEST(SlabGeometry, SlotsForObjectsOfAnySizeWasteLessThanAnEighth) {
  std::uint64_t last = 0;
  std::size_t num_sizes = 0;
  for (std::uint64_t bytes = 1; bytes < 64 * kMiB; bytes += 1 + bytes / 97) {
    const std::uint64_t slot = slot_bytes_for(bytes);
    EXPECT_GE(slot, bytes);
    EXPECT_EQ(slot_bytes_for(slot), slot);
    if (bytes > 4096) {
      EXPECT_LT((slot - bytes) * 8, bytes);
    }
    EXPECT_GE(slot, last);
    if (slot != last) ++num_sizes;
    last = slot;
  }
  EXPECT_EQ(num_sizes, 1U + 8 * 14);
  EXPECT_EQ(slot_bytes_for(4 * kMiB), 4 * kMiB);
  EXPECT_THROW(static_cast<void>(slot_bytes_for(0)), ConfigError);
  EXPECT_THROW(static_cast<void>(slot_bytes_for(~std::uint64_t{0})), ConfigError);
}

}  // namespace
}  // namespace kvferry::cpu_tier
