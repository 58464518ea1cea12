// SPDX-License-Identifier: Apache-2.0
#include "kvferry/lmcache/store_geometry.hpp"

#include "kvferry/base/error.hpp"
#include "kvferry/cpu_tier/slots/tier.hpp"
#include "kvferry/lmcache/slot_record.hpp"

#include "byte_sizes.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>

namespace kvferry::lmcache {
namespace {

/// Bytes of the slot for a value; 0: there is none.
std::uint64_t slot_bytes(const StoreGeometry& geometry, std::uint64_t value_bytes,
                         std::uint64_t key_bytes = 100) {
  const auto size = geometry.size_for(value_bytes, key_bytes);
  return size ? geometry.sizes[*size].bytes : 0;
}

TEST(StoreGeometry, TakesAlmostAllOfTheCapacityAndNoMore) {
  for (std::uint64_t capacity = kMiB; capacity <= 4096 * kGiB; capacity += capacity / 3) {
    const StoreGeometry geometry = store_geometry(capacity);
    const std::uint64_t bytes = geometry.chunk_bytes * geometry.num_chunks;
    EXPECT_LE(bytes, capacity);
    EXPECT_GE(bytes, capacity - geometry.chunk_bytes) << capacity;
    EXPECT_GE(geometry.num_chunks, 8U) << capacity;
    EXPECT_LE(std::uint64_t{geometry.sizes.front().num_slots} * geometry.num_chunks,
              kMaxSlotsPerClass + kMaxSlotsPerClass / 512)
        << capacity;
  }
}

TEST(StoreGeometry, WastesNothingOnPowersOfTwo) {
  for (const std::uint64_t capacity : {2 * kGiB, 64 * kGiB, 1024 * kGiB}) {
    const StoreGeometry geometry = store_geometry(capacity);
    for (std::uint64_t bytes = std::max(256 * kKiB, geometry.sizes.front().bytes);
         bytes <= 32 * kMiB; bytes *= 2) {
      const auto size = geometry.size_for(bytes, 100);
      ASSERT_TRUE(size.has_value());
      EXPECT_GE(geometry.sizes[*size].num_slots * bytes,
                geometry.chunk_bytes - geometry.chunk_bytes / 1000)
          << bytes;
    }
  }
}

TEST(StoreGeometry, LosesLessThanAnEighthOfAnObjectOfAnySize) {
  const StoreGeometry geometry = store_geometry(64 * kGiB);
  // Where a chunk has few slots, what is over behind them counts for more.
  for (std::uint64_t bytes = geometry.sizes.front().bytes; bytes < geometry.chunk_bytes / 64;
       bytes += bytes / 50 + 1) {
    EXPECT_LT(slot_bytes(geometry, bytes) - bytes, bytes / 8 + 4096) << bytes;
  }
}

/// All that a store and others that share its memory rely on.
void expect_sound(const StoreGeometry& geometry, std::uint32_t max_chunk_slots) {
  SCOPED_TRACE(geometry.chunk_bytes);
  ASSERT_LE(geometry.sizes.size(), cpu_tier::Tier::kMaxClasses);
  EXPECT_EQ(geometry.sizes.back().num_slots, 1U);
  for (std::uint32_t i = 0; i < geometry.sizes.size(); ++i) {
    const auto& [bytes, num_slots] = geometry.sizes[i];
    EXPECT_GE(num_slots, 1U);
    EXPECT_LE(num_slots, max_chunk_slots);
    EXPECT_GT(bytes, 0U);
    EXPECT_LE(num_slots * (bytes + kRecordBytes), geometry.chunk_bytes);
    EXPECT_EQ(geometry.size_for(bytes, 1), i);
    EXPECT_EQ(geometry.size_with(num_slots), i);
    if (i == 0) continue;
    EXPECT_GT(bytes, geometry.sizes[i - 1].bytes);
    EXPECT_LT(num_slots, geometry.sizes[i - 1].num_slots);
    EXPECT_EQ(geometry.size_for(geometry.sizes[i - 1].bytes + 1, 1), i);
  }
}

TEST(StoreGeometry, HasOneSizeForEachNumberOfSlotsAndRoomForTheRecords) {
  for (std::uint64_t capacity = kMiB; capacity <= 1024 * 1024 * kGiB; capacity *= 3) {
    expect_sound(store_geometry(capacity), UINT32_MAX);
  }
  // Of a file that others divide.
  for (const std::uint64_t chunk_bytes :
       {4 * kKiB, 64 * kKiB, kMiB, 3 * kMiB + 4 * kKiB, 64 * kMiB, 16 * kGiB}) {
    for (const std::uint32_t num_chunks : {1U, 16U, 1000U, 100000U}) {
      const auto most =
          static_cast<std::uint32_t>(std::max(std::uint64_t{64}, chunk_bytes / (16 * kKiB)));
      expect_sound(divided(chunk_bytes, num_chunks, most), most);
    }
  }
}

TEST(StoreGeometry, KnowsNoNumberOfSlotsThatIsNoSizes) {
  const StoreGeometry geometry = store_geometry(64 * kGiB);
  EXPECT_FALSE(geometry.size_with(0).has_value());
  EXPECT_FALSE(geometry.size_with(geometry.sizes.front().num_slots + 1).has_value());
  EXPECT_FALSE(geometry.size_with(geometry.sizes.front().num_slots - 1).has_value());
}

TEST(StoreGeometry, KeepsRoomForAKeyThatNoRecordHolds) {
  const StoreGeometry geometry = store_geometry(256 * kMiB);
  constexpr std::uint64_t kLongest = SlotRecord::kInlineKeyBytes;
  const std::uint64_t most = slot_bytes(geometry, kMiB);
  EXPECT_EQ(slot_bytes(geometry, most, kLongest), most);
  EXPECT_GE(slot_bytes(geometry, most, kLongest + 1), most + kLongest + 1);
}

TEST(StoreGeometry, HasNoSlotForWhatIsLargerThanAChunk) {
  const StoreGeometry geometry = store_geometry(256 * kMiB);
  const std::uint64_t most = geometry.sizes.back().bytes;
  EXPECT_LE(most, geometry.chunk_bytes - kRecordBytes);
  EXPECT_EQ(slot_bytes(geometry, most, 1), most);
  EXPECT_FALSE(geometry.size_for(most + 1, 1).has_value());
  EXPECT_FALSE(geometry.size_for(most, 1000).has_value());
  EXPECT_FALSE(geometry.size_for(UINT64_MAX, 1000).has_value());
  EXPECT_FALSE(geometry.size_for(1, UINT64_MAX).has_value());
}

TEST(StoreGeometry, RefusesACapacityThatHoldsNothing) {
  EXPECT_THROW(static_cast<void>(store_geometry(kMiB - 1)), ConfigError);
  EXPECT_THROW(static_cast<void>(store_geometry(UINT64_MAX)), ConfigError);
}

}  // namespace
}  // namespace kvferry::lmcache
