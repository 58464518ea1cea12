// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/memory/slab_geometry.hpp"

#include "kvferry/base/error.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace kvferry::cpu_tier {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

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

TEST(SlabGeometry, StagesAgreeOnTheLeast) {
  // The second stage has a layer less: its slots are smaller, and its chunks as well.
  const std::vector<std::uint64_t> first{4 * kMiB, kMiB};
  const std::vector<std::uint64_t> second{3 * kMiB, kMiB};
  const SlabGeometry a = slab_geometry(640 * kMiB, 64 * kMiB, first);
  const SlabGeometry b = slab_geometry(500 * kMiB, 50 * kMiB, second);
  EXPECT_EQ(a, (SlabGeometry{10, {16, 64}}));
  EXPECT_EQ(b, (SlabGeometry{10, {16, 50}}));
  EXPECT_EQ(least_of(std::vector{a, b}), (SlabGeometry{10, {16, 50}}));
  EXPECT_EQ(least_of(std::vector{SlabGeometry{7, {16, 60}}, b}), (SlabGeometry{7, {16, 50}}));
}

TEST(SlabGeometry, WhatCannotBeIsAnError) {
  const std::vector<std::uint64_t> one{kMiB};
  EXPECT_THROW(static_cast<void>(slab_geometry(kMiB, 2 * kMiB, one)), ConfigError);
  EXPECT_THROW(static_cast<void>(slab_geometry(kMiB, kMiB, {})), ConfigError);
  EXPECT_THROW(static_cast<void>(least_of({})), ConfigError);
  EXPECT_THROW(
      static_cast<void>(least_of(std::vector{SlabGeometry{1, {1}}, SlabGeometry{1, {1, 2}}})),
      ConfigError);
}

TEST(SlabGeometry, AChunkOfOneClassIsASlotAndTheLargestRankBoundsAll) {
  const std::vector<std::vector<std::uint64_t>> bytes{{3000, 5000, 4000}};
  const SlabGeometry geometry = geometry_of_ranks(50'999, bytes);
  EXPECT_EQ(geometry.num_chunks, 10U);
  EXPECT_EQ(geometry.slots_per_chunk, (std::vector<std::uint32_t>{1}));
}

TEST(SlabGeometry, RanksThatDivideTheirLayersOtherwiseAgreeOnTheLeast) {
  // A stage with half of the layers of one group and a quarter of the other's.
  const std::vector<std::vector<std::uint64_t>> bytes{{8000, 4000}, {3000, 1000}};
  const SlabGeometry geometry = geometry_of_ranks(1'000'000, bytes);
  // 1,000,000 / 8,000 / 64: one slot of the largest, so that there are 125 chunks.
  EXPECT_EQ(geometry.num_chunks, 125U);
  EXPECT_EQ(geometry.slots_per_chunk, (std::vector<std::uint32_t>{1, 2}));
}

TEST(SlabGeometry, ChunksGrowWithTheTierUpTo64Slots) {
  const auto chunks_of = [](std::uint64_t share_bytes) {
    return geometry_of_ranks(share_bytes, std::vector<std::vector<std::uint64_t>>{{1000}, {300}});
  };
  EXPECT_EQ(chunks_of(1000), (SlabGeometry{1, {1, 3}}));
  EXPECT_EQ(chunks_of(128'000), (SlabGeometry{64, {2, 6}}));
  EXPECT_EQ(chunks_of(64'000 * 1000), (SlabGeometry{1000, {64, 213}}));
}

TEST(SlabGeometry, BehindTheSlotsOfAChunkIsLessThanOnePartInItsLargestSlots) {
  for (std::uint64_t small = 1; small <= 4096; small += 1 + small / 7) {
    for (const std::uint64_t share : {std::uint64_t{1} << 20, std::uint64_t{1} << 24}) {
      const SlabGeometry geometry =
          geometry_of_ranks(share, std::vector<std::vector<std::uint64_t>>{{4096}, {small}});
      const std::uint64_t chunk_bytes = geometry.slots_per_chunk[0] * 4096U;
      const std::uint64_t wasted = chunk_bytes - geometry.slots_per_chunk[1] * small;
      EXPECT_LT(wasted * geometry.slots_per_chunk[0], chunk_bytes) << small << " in " << share;
      EXPECT_LE(geometry.num_chunks * chunk_bytes, share);
      EXPECT_GT((geometry.num_chunks + 1) * chunk_bytes, share);
    }
  }
}

TEST(SlabGeometry, ATierThatHoldsNothingOrAClassThatARankLacksIsAnError) {
  using Bytes = std::vector<std::vector<std::uint64_t>>;
  EXPECT_THROW(static_cast<void>(geometry_of_ranks(999, Bytes{{1000}})), ConfigError);
  EXPECT_THROW(static_cast<void>(geometry_of_ranks(999, Bytes{})), ConfigError);
  EXPECT_THROW(static_cast<void>(geometry_of_ranks(9999, Bytes{{1000, 1000}, {10}})), ConfigError);
  EXPECT_THROW(static_cast<void>(geometry_of_ranks(9999, Bytes{{1000}, {0}})), ConfigError);
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
