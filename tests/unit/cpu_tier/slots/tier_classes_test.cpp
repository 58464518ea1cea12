// SPDX-License-Identifier: Apache-2.0
#include "kvferry/base/error.hpp"
#include "kvferry/cpu_tier/slots/tier.hpp"

#include "tier_fixture.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace kvferry::cpu_tier {
namespace {

constexpr std::uint32_t kChunks = 8;
const TierOptions kPlainLru{Eviction::kLru, Admission::kAlways};

/// Eight chunks for slots of which a chunk has 4, 16 or 1.
class TierClassesTest : public ::testing::Test {
 protected:
  TierClassesTest() : tier(kChunks, {}, kPlainLru) {
    large = tier.add_class(4);
    small = tier.add_class(16);
    whole = tier.add_class(1);
    tier.grow_to(kChunks);
  }
  void TearDown() override { tier.check_invariants(); }

  WritableSlots take(SlabClassId of, std::uint64_t first, std::size_t count) {
    return std::move(tier.reserve(of, keys(first, count))).value().hand_over();
  }
  void store(SlabClassId of, std::uint64_t first, std::size_t count) {
    tier.commit(take(of, first, count));
  }
  Lease lease(SlabClassId of, std::uint64_t first, std::size_t count) {
    return std::move(tier.lease(of, keys(first, count))).value();
  }
  std::size_t held(SlabClassId of, std::uint64_t first, std::size_t count) {
    return tier.lookup_prefix(of, keys(first, count)).size();
  }
  std::uint32_t num_chunks(SlabClassId of) {
    return tier.slab_snapshot().classes[of.value()].num_chunks;
  }

  Tier tier;
  SlabClassId large;
  SlabClassId small;
  SlabClassId whole;
};

TEST_F(TierClassesTest, ChunksGoToWhoeverStores) {
  store(large, 0, 5);
  EXPECT_EQ(num_chunks(large), 2U);
  store(small, 100, 16);
  EXPECT_EQ(num_chunks(small), 1U);
  store(whole, 200, 5);
  EXPECT_EQ(num_chunks(whole), 5U);
  EXPECT_EQ(tier.slab_snapshot().num_free_chunks, 0U);
  EXPECT_EQ(held(large, 0, 5), 5U);
  EXPECT_EQ(held(small, 100, 16), 16U);
  EXPECT_EQ(held(whole, 200, 5), 5U);
}

TEST_F(TierClassesTest, SlotsOfAClassLieInItsChunks) {
  WritableSlots first = take(large, 0, 4);
  WritableSlots other = take(small, 100, 1);
  WritableSlots second = take(large, 10, 2);
  EXPECT_EQ(ids(first.slots()), (std::vector<std::uint32_t>{0, 1, 2, 3}));
  EXPECT_EQ(ids(other.slots()), (std::vector<std::uint32_t>{16}));
  EXPECT_EQ(ids(second.slots()), (std::vector<std::uint32_t>{8, 9}));
  tier.commit(std::move(first));
  tier.commit(std::move(second));
  tier.commit(std::move(other));
}

TEST_F(TierClassesTest, AClassThatStarvesGetsTheColdestChunk) {
  for (std::uint64_t i = 0; i < kChunks; ++i) store(large, 100 * i, 4);
  tier.touch(large, keys(0, 4));
  // Its first block takes the chunk that was stored second.
  store(small, 10'000, 1);
  EXPECT_EQ(num_chunks(small), 1U);
  EXPECT_EQ(held(large, 0, 4), 4U);
  EXPECT_EQ(held(large, 100, 4), 0U);
  EXPECT_EQ(held(large, 200, 4), 4U);
  EXPECT_EQ(tier.slab_snapshot().classes[small.value()].num_gained_total, 1U);
  EXPECT_EQ(tier.slab_snapshot().classes[large.value()].tier.num_evicted_total, 4U);
}

TEST_F(TierClassesTest, FreeChunksOfAnotherClassGoBeforeItsBlocks) {
  for (std::uint64_t i = 0; i < kChunks; ++i) store(large, 100 * i, 4);
  Lease doubted = lease(large, 500, 4);
  tier.forget(doubted);
  tier.release(std::move(doubted));
  store(small, 10'000, 16);
  for (std::uint64_t i = 0; i < kChunks; ++i) EXPECT_EQ(held(large, 100 * i, 4), i == 5 ? 0U : 4U);
}

TEST_F(TierClassesTest, AChunkWithANamedSlotStays) {
  for (std::uint64_t i = 0; i < kChunks; ++i) store(large, 100 * i, 4);
  Lease leased = lease(large, 100, 1);
  WritableSlots writable = take(large, 1'000, 1);  // In the place of the coldest, 3.
  EXPECT_FALSE(tier.reserve(whole, keys(20'000, kChunks - 1)).ok());
  store(whole, 20'000, kChunks - 2);
  EXPECT_EQ(held(large, 100, 4), 4U);
  EXPECT_EQ(held(large, 0, 4), 3U);
  tier.release(std::move(leased));
  tier.commit(std::move(writable));
}

TEST_F(TierClassesTest, WithoutAChunkToBeHadNothingIsReserved) {
  std::vector<Lease> leases;
  for (std::uint64_t i = 0; i < kChunks; ++i) {
    store(large, 100 * i, 4);
    leases.push_back(lease(large, 100 * i + 3, 1));
  }
  const auto none = tier.reserve(small, keys(20'000, 1));
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.otherwise().num_available, 0U);
  for (std::uint64_t i = 0; i < kChunks; ++i) EXPECT_EQ(held(large, 100 * i, 4), 4U);
  // One lease less is a chunk more, wherever it is.
  tier.release(std::move(leases[6]));
  leases.erase(leases.begin() + 6);
  store(small, 20'000, 16);
  EXPECT_EQ(held(large, 600, 4), 0U);
  for (Lease& one : leases) tier.release(std::move(one));
}

TEST_F(TierClassesTest, MoreThanAllOfTheMemoryTakesNothing) {
  for (std::uint64_t i = 0; i < kChunks; ++i) store(large, 100 * i, 4);
  EXPECT_FALSE(tier.reserve(small, keys(20'000, 16 * kChunks + 1)).ok());
  for (std::uint64_t i = 0; i < kChunks; ++i) EXPECT_EQ(held(large, 100 * i, 4), 4U);
}

TEST_F(TierClassesTest, MemoryThatLiesUnusedGoesToWhoeverEvicts) {
  // A class fills the memory and is not used any more; the other has one chunk and a working set of
  // four, over and over.
  for (std::uint64_t i = 0; i < kChunks; ++i) store(large, 100 * i, 4);
  std::size_t num_hits = 0;
  for (std::uint64_t i = 0; i < 400; ++i) {
    const std::uint64_t number = 20'000 + 4 * (i % 16);
    if (held(small, number, 4) == 4) {
      tier.touch(small, keys(number, 4));
      ++num_hits;
    } else {
      store(small, number, 4);
    }
  }
  EXPECT_GE(num_chunks(small), 4U);
  EXPECT_GT(num_hits, 200U);
}

TEST_F(TierClassesTest, TwoClassesThatAreAlikeLeaveEachOtherAlone) {
  for (std::uint64_t i = 0; i < 4; ++i) store(large, 100 * i, 4);
  for (std::uint64_t i = 0; i < 4; ++i) store(small, 10'000 + 100 * i, 16);
  for (std::uint64_t i = 10; i < 300; ++i) {
    store(large, 100 * i, 4);
    store(small, 10'000 + 100 * i, 16);
  }
  for (const SlabClassSnapshot& one : tier.slab_snapshot().classes)
    EXPECT_LE(one.num_gained_total, 2U);
}

TEST(Tier, DeclinesNothingThatAFreeChunkWouldHold) {
  Tier tier(2, {}, {Eviction::kLru, Admission::kSecondOffer});
  const SlabClassId one = tier.add_class(2);
  tier.grow_to(2);
  const auto num_admitted = [&](std::uint64_t first, std::size_t count) {
    std::vector<OfferAnswer> answers(count);
    tier.offer(one, keys(first, count), answers);
    return std::count(answers.begin(), answers.end(), OfferAnswer::kStore);
  };
  // Its first chunk is full, and nobody has the second.
  tier.commit(std::move(tier.reserve(one, keys(0, 2))).value().hand_over());
  EXPECT_EQ(num_admitted(10, 3), 2);
  tier.commit(std::move(tier.reserve(one, keys(10, 2))).value().hand_over());
  EXPECT_EQ(num_admitted(20, 3), 0);
  EXPECT_EQ(num_admitted(20, 3), 3) << "offered again";
}

TEST_F(TierClassesTest, GrowsWhileItIsUsed) {
  Tier growing(kChunks, {}, kPlainLru);
  const SlabClassId of = growing.add_class(2);
  EXPECT_FALSE(growing.reserve(of, keys(0, 1)).ok());
  growing.grow_to(1);
  EXPECT_FALSE(growing.reserve(of, keys(0, 3)).ok());
  WritableSlots first = std::move(growing.reserve(of, keys(0, 2))).value().hand_over();
  growing.grow_to(3);
  WritableSlots second = std::move(growing.reserve(of, keys(10, 3))).value().hand_over();
  EXPECT_EQ(ids(second.slots()), (std::vector<std::uint32_t>{4, 5, 2}));
  growing.commit(std::move(first));
  growing.commit(std::move(second));
  growing.check_invariants();
}

TEST(Tier, ClassesHaveLimits) {
  Tier tier(1U << 20, {}, kPlainLru);
  EXPECT_THROW(static_cast<void>(tier.add_class(0)), ConfigError);
  EXPECT_THROW(static_cast<void>(tier.add_class(1U << 12)), ConfigError);
  Tier tiny(1, {}, kPlainLru);
  for (std::uint32_t i = 0; i < Tier::kMaxClasses; ++i) {
    EXPECT_EQ(tiny.add_class(1), SlabClassId(i));
  }
  EXPECT_THROW(static_cast<void>(tiny.add_class(1)), ConfigError);
}

}  // namespace
}  // namespace kvferry::cpu_tier
