// SPDX-License-Identifier: Apache-2.0
#include "kvferry/transfer/staging_ring.hpp"

#include "kvferry/base/error.hpp"
#include "kvferry/gpu/host_link.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <random>
#include <vector>

namespace kvferry::transfer {
namespace {

class StagingRingTest : public ::testing::Test {
 protected:
  StagingRingTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }

  std::unique_ptr<gpu::Device> device_ = gpu::make_host_device();
};

TEST_F(StagingRingTest, FillsExactlyAndThenTakesNothing) {
  StagingRing ring(*device_, 1024);
  const RingRegion region = ring.allocate(128, 100);
  EXPECT_EQ(region.num_entries, 8U);
  EXPECT_EQ(region.entry_bytes, 128U);
  EXPECT_EQ(ring.used_bytes(), ring.size_bytes());

  const RingRegion none = ring.allocate(16, 1);
  EXPECT_EQ(none.num_entries, 0U);
  EXPECT_EQ(none.ticket, 0U);

  ring.release(region.ticket);
  EXPECT_EQ(ring.used_bytes(), 0U);
}

TEST_F(StagingRingTest, TakesNoMoreThanAskedFor) {
  StagingRing ring(*device_, 1024);
  const RingRegion region = ring.allocate(128, 3);
  EXPECT_EQ(region.num_entries, 3U);
  EXPECT_EQ(ring.used_bytes(), 384U);
  EXPECT_EQ(ring.allocate(128, 0).ticket, 0U);
  ring.release(region.ticket);
}

TEST_F(StagingRingTest, FillsBothSidesOfItsEndInTwoCalls) {
  StagingRing ring(*device_, 1024);
  const RingRegion first = ring.allocate(128, 3);
  const RingRegion second = ring.allocate(128, 3);
  EXPECT_EQ(second.address, first.address + 384);
  ring.release(first.ticket);

  const RingRegion at_end = ring.allocate(128, 5);
  EXPECT_EQ(at_end.num_entries, 2U);
  EXPECT_EQ(at_end.address, second.address + 384);
  const RingRegion at_start = ring.allocate(128, 3);
  EXPECT_EQ(at_start.num_entries, 3U);
  EXPECT_EQ(at_start.address, first.address);
  EXPECT_EQ(ring.used_bytes(), 1024U);
  EXPECT_EQ(ring.allocate(128, 1).num_entries, 0U);

  for (const auto& region : {second, at_end, at_start}) ring.release(region.ticket);
  EXPECT_EQ(ring.used_bytes(), 0U);
}

TEST_F(StagingRingTest, SkipsAnEndTooShortForAnEntry) {
  StagingRing ring(*device_, 1000);
  const RingRegion first = ring.allocate(304, 1);
  const RingRegion second = ring.allocate(304, 2);
  ASSERT_EQ(second.num_entries, 2U);
  ring.release(first.ticket);
  const RingRegion wrapped = ring.allocate(304, 1);
  EXPECT_EQ(wrapped.address, first.address);
  EXPECT_EQ(ring.used_bytes(), 1000U) << "88 bytes at the end are skipped and count as used";
  ring.release(second.ticket);
  EXPECT_EQ(ring.used_bytes(), 304U + 88U);
  ring.release(wrapped.ticket);
  EXPECT_EQ(ring.used_bytes(), 0U);
}

TEST_F(StagingRingTest, GivesSpaceBackOnlyWhenEverythingOlderIsBack) {
  StagingRing ring(*device_, 1024);
  const RingRegion first = ring.allocate(512, 1);
  const RingRegion second = ring.allocate(512, 1);
  ring.release(second.ticket);
  EXPECT_EQ(ring.used_bytes(), 1024U);
  EXPECT_EQ(ring.allocate(512, 1).num_entries, 0U);
  ring.release(first.ticket);
  EXPECT_EQ(ring.used_bytes(), 0U);
}

TEST_F(StagingRingTest, StartsOverWhenEmpty) {
  StagingRing ring(*device_, 1024);
  const RingRegion first = ring.allocate(768, 1);
  ring.release(first.ticket);
  const RingRegion whole = ring.allocate(1024, 1);
  EXPECT_EQ(whole.num_entries, 1U);
  EXPECT_EQ(whole.address, first.address);
  ring.release(whole.ticket);
}

TEST_F(StagingRingTest, AlignsRegionsOfMixedEntrySizes) {
  StagingRing ring(*device_, 1024);
  const RingRegion odd = ring.allocate(47, 3);
  const RingRegion even = ring.allocate(128, 2);
  EXPECT_EQ(even.address % StagingRing::kAlignmentBytes, 0U);
  EXPECT_GE(even.address, odd.address + 3 * 47);
  EXPECT_EQ(ring.used_bytes(), 144U + 256U);
  ring.release(odd.ticket);
  ring.release(even.ticket);
}

TEST_F(StagingRingTest, WithoutMemoryTakesNothing) {
  StagingRing ring(*device_, 0);
  EXPECT_EQ(ring.allocate(1, 1).num_entries, 0U);
  EXPECT_EQ(ring.size_bytes(), 0U);
}

TEST_F(StagingRingTest, NamesAShortageOfDeviceMemory) {
  EXPECT_THROW(StagingRing(*device_, std::numeric_limits<std::uint64_t>::max() / 2), ResourceError);
}

TEST_F(StagingRingTest, NeverReusesAQuarantinedRegion) {
  StagingRing ring(*device_, 1024);
  const RingRegion older = ring.allocate(256, 1);
  const RingRegion doubtful = ring.allocate(256, 1);
  const RingRegion newer = ring.allocate(256, 1);
  ring.quarantine(doubtful.ticket);
  ring.release(newer.ticket);
  ring.release(older.ticket);
  EXPECT_EQ(ring.used_bytes(), 512U) << "only what is older than the quarantined region returns";

  // 256 bytes at the end and 256 at the start are left; neither call may reach the doubtful 256.
  const RingRegion end = ring.allocate(256, 4);
  const RingRegion start = ring.allocate(256, 4);
  EXPECT_EQ(end.num_entries, 1U);
  EXPECT_EQ(start.num_entries, 1U);
  EXPECT_EQ(end.address, newer.address + 256);
  EXPECT_EQ(start.address, older.address);
  EXPECT_EQ(ring.allocate(16, 1).num_entries, 0U);
  ring.release(end.ticket);
  ring.release(start.ticket);
}

TEST_F(StagingRingTest, RefusesTicketsThatAreNotInUse) {
  StagingRing ring(*device_, 1024);
  const RingRegion first = ring.allocate(128, 1);
  const RingRegion second = ring.allocate(128, 1);
  EXPECT_DEATH(ring.release(0), "ticket 0");
  EXPECT_DEATH(ring.release(second.ticket + 1), "release of ring ticket");
  ring.release(second.ticket);
  EXPECT_DEATH(ring.release(second.ticket), "release of ring ticket");
  ring.release(first.ticket);
  EXPECT_DEATH(ring.release(first.ticket), "release of ring ticket");
}

TEST_F(StagingRingTest, MustNotDieWithARegionTaken) {
  EXPECT_DEATH(
      {
        StagingRing ring(*device_, 1024);
        static_cast<void>(ring.allocate(128, 1));
      },
      "frees its memory with 1 regions taken");
}

// No two regions in use ever overlap, and nothing is lost: after every release the ring is empty
// again.
TEST_F(StagingRingTest, RegionsInUseNeverOverlap) {
  constexpr std::uint64_t kSeed = 20261121;
  std::mt19937_64 random(kSeed);
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  constexpr std::uint64_t kBytes = 5000;
  StagingRing ring(*device_, kBytes);
  const RingRegion probe = ring.allocate(1, 1);
  const std::uintptr_t base = probe.address;
  ring.release(probe.ticket);

  std::vector<RingRegion> taken;
  std::uint64_t num_taken = 0;
  for (int step = 0; step < 20000; ++step) {
    if (random() % 2 == 0) {
      const RingRegion region = ring.allocate(1 + random() % 700, 1 + random() % 5);
      if (region.num_entries == 0) continue;
      const std::uintptr_t end = region.address + region.entry_bytes * region.num_entries;
      ASSERT_GE(region.address, base);
      ASSERT_LE(end, base + kBytes);
      for (const RingRegion& other : taken) {
        ASSERT_TRUE(end <= other.address ||
                    other.address + other.entry_bytes * other.num_entries <= region.address);
      }
      taken.push_back(region);
      ++num_taken;
    } else if (!taken.empty()) {
      const std::size_t index = random() % taken.size();
      ring.release(taken[index].ticket);
      taken.erase(taken.begin() + static_cast<std::ptrdiff_t>(index));
    }
    ASSERT_EQ(ring.used_bytes() == 0, taken.empty());
    ASSERT_LE(ring.used_bytes(), kBytes);
  }
  EXPECT_GT(num_taken, 2000U);
  for (const RingRegion& region : taken) ring.release(region.ticket);
  EXPECT_EQ(ring.used_bytes(), 0U);
}

}  // namespace
}  // namespace kvferry::transfer
