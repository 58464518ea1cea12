// SPDX-License-Identifier: Apache-2.0
#include "kvferry/lmcache/store_geometry.hpp"

#include "kvferry/base/error.hpp"
#include "kvferry/lmcache/slot_record.hpp"

#include <gtest/gtest.h>

#include <cstdint>

namespace kvferry::lmcache {
namespace {

constexpr std::uint64_t kKiB = 1024;
constexpr std::uint64_t kMiB = kKiB * kKiB;
constexpr std::uint64_t kGiB = kKiB * kMiB;

TEST(StoreGeometry, TakesAlmostAllOfTheCapacityAndNoMore) {
  for (std::uint64_t capacity = kMiB; capacity <= 4096 * kGiB; capacity += capacity / 3) {
    const StoreGeometry geometry = store_geometry(capacity);
    const std::uint64_t bytes = geometry.chunk_bytes * geometry.num_chunks;
    EXPECT_LE(bytes, capacity);
    EXPECT_GE(bytes, capacity - geometry.chunk_bytes) << capacity;
    EXPECT_GE(geometry.num_chunks, 8U) << capacity;
    EXPECT_LE(
        std::uint64_t{slots_per_chunk(geometry, geometry.least_slot_bytes)} * geometry.num_chunks,
        kMaxSlotsPerClass + kMaxSlotsPerClass / 512)
        << capacity;
  }
}

TEST(StoreGeometry, WastesNothingOnPowersOfTwo) {
  for (const std::uint64_t capacity : {2 * kGiB, 64 * kGiB, 1024 * kGiB}) {
    const StoreGeometry geometry = store_geometry(capacity);
    for (std::uint64_t bytes = std::max(256 * kKiB, geometry.least_slot_bytes); bytes <= 32 * kMiB;
         bytes *= 2) {
      EXPECT_EQ(slot_bytes_of(geometry, bytes, 100), bytes);
      EXPECT_GE(slots_per_chunk(geometry, bytes) * bytes,
                geometry.chunk_bytes - geometry.chunk_bytes / 1000)
          << bytes;
    }
  }
}

TEST(StoreGeometry, SlotsAndRecordsOfAChunkDoNotOverlap) {
  const StoreGeometry geometry = store_geometry(256 * kMiB);
  for (std::uint64_t bytes = 1; bytes < geometry.chunk_bytes - kRecordBytes;
       bytes += bytes / 7 + 1) {
    const auto slot = slot_bytes_of(geometry, bytes, 10);
    ASSERT_TRUE(slot.has_value()) << bytes;
    EXPECT_GE(*slot, bytes);
    const std::uint64_t count = slots_per_chunk(geometry, *slot);
    EXPECT_GE(count, 1U) << bytes;
    EXPECT_LE(count * (*slot + kRecordBytes), geometry.chunk_bytes) << bytes;
  }
}

TEST(StoreGeometry, KeepsRoomForAKeyThatNoRecordHolds) {
  const StoreGeometry geometry = store_geometry(256 * kMiB);
  constexpr std::uint64_t kLongest = SlotRecord::kInlineKeyBytes;
  EXPECT_EQ(slot_bytes_of(geometry, kMiB, kLongest), kMiB);
  EXPECT_GE(slot_bytes_of(geometry, kMiB, kLongest + 1).value_or(0), kMiB + kLongest + 1);
}

TEST(StoreGeometry, HasNoSlotForWhatIsLargerThanAChunk) {
  const StoreGeometry geometry = store_geometry(256 * kMiB);
  const std::uint64_t most = geometry.chunk_bytes - kRecordBytes;
  EXPECT_EQ(slot_bytes_of(geometry, most, 1), most);
  EXPECT_FALSE(slot_bytes_of(geometry, most + 1, 1).has_value());
  EXPECT_FALSE(slot_bytes_of(geometry, most, 1000).has_value());
  EXPECT_FALSE(slot_bytes_of(geometry, UINT64_MAX, 1000).has_value());
  EXPECT_FALSE(slot_bytes_of(geometry, 1, UINT64_MAX).has_value());
}

TEST(StoreGeometry, RefusesACapacityThatHoldsNothing) {
  EXPECT_THROW(static_cast<void>(store_geometry(kMiB - 1)), ConfigError);
  EXPECT_THROW(static_cast<void>(store_geometry(UINT64_MAX)), ConfigError);
}

}  // namespace
}  // namespace kvferry::lmcache
