// SPDX-License-Identifier: Apache-2.0
// Chunks that go out of use for the machine's sake, and come back.
#include "kvferry/cpu_tier/slots/retirable_chunks.hpp"
#include "kvferry/cpu_tier/slots/tier.hpp"

#include "tier_fixture.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace kvferry::cpu_tier {
namespace {

constexpr std::uint32_t kSlots = 32;
/// Of slots, which are chunks here.
constexpr std::uint32_t kRun = 8;

std::vector<std::uint32_t> numbers(const std::optional<ChunkRange>& chunks) {
  if (!chunks) return {};
  return {chunks->begin.value(), chunks->end.value()};
}
using Ends = std::vector<std::uint32_t>;

class TierResizingTest : public ::testing::Test {
 protected:
  TierResizingTest() { tier.grow_to(kSlots); }
  void TearDown() override { tier.check_invariants(); }

  WritableSlots take(std::uint64_t first, std::size_t count) {
    return std::move(tier.reserve(kOne, keys(first, count))).value().hand_over();
  }
  void store(std::uint64_t first, std::size_t count) { tier.commit(take(first, count)); }
  std::size_t held(std::uint64_t first, std::size_t count) {
    return tier.lookup_prefix(kOne, keys(first, count)).size();
  }
  std::optional<ChunkRange> retire() { return RetirableChunks(tier).retire_coldest(kRun); }

  static constexpr SlabClassId kOne{0};
  Tier tier{kSlots, std::array{1U}, TierOptions{Eviction::kLru, Admission::kAlways, 0.5F}};
};

TEST_F(TierResizingTest, TheRunWithTheColdestBlocksGoesAndTheyAreEvicted) {
  for (std::uint64_t first = 0; first < kSlots; first += kRun) store(first, kRun);
  tier.touch(kOne, keys(0, kRun));
  const std::uint64_t epoch = tier.eviction_epoch();
  EXPECT_EQ(numbers(retire()), (Ends{8, 16}));
  EXPECT_EQ(held(8, 8), 0U);
  EXPECT_EQ(held(0, 8), 8U);
  EXPECT_EQ(held(16, 16), 16U);
  EXPECT_GT(tier.eviction_epoch(), epoch);
  EXPECT_EQ(tier.snapshot().num_slots, kSlots - kRun);
  EXPECT_EQ(tier.snapshot().num_evicted_total, kRun);
  EXPECT_EQ(numbers(retire()), (Ends{16, 24}));
}

TEST_F(TierResizingTest, FreeSlotsGoBeforeBlocks) {
  store(0, kSlots / 2);
  EXPECT_EQ(numbers(retire()), (Ends{24, 32}));
  EXPECT_EQ(numbers(retire()), (Ends{16, 24}));
  EXPECT_EQ(held(0, 16), 16U);
  EXPECT_EQ(tier.snapshot().num_free, 0U);
}

TEST_F(TierResizingTest, ATierOfNothingCanGoWhole) {
  for (std::uint32_t run = 0; run < kSlots / kRun; ++run) EXPECT_TRUE(retire());
  EXPECT_FALSE(retire());
  EXPECT_EQ(tier.snapshot().num_slots, 0U);
  EXPECT_FALSE(tier.reserve(kOne, keys(0, 1)).ok());
}

TEST_F(TierResizingTest, WhatIsNamedStaysAndGoesWhenItIsNot) {
  for (std::uint64_t first = 0; first < kSlots; first += kRun) store(first, kRun);
  Lease read = std::move(tier.lease(kOne, keys(3, 1))).value();
  Lease doubted = std::move(tier.lease(kOne, keys(11, 1))).value();
  tier.forget(doubted);
  WritableSlots filling = take(100, 1);
  EXPECT_EQ(filling.slots().front().value() / kRun, 0U);
  Lease other = std::move(tier.lease(kOne, keys(16, 1))).value();
  EXPECT_EQ(numbers(retire()), (Ends{24, 32}));
  EXPECT_FALSE(retire()) << "each other run has a slot that is named";

  tier.release(std::move(doubted));
  EXPECT_EQ(numbers(retire()), (Ends{8, 16}));
  tier.release(std::move(other));
  EXPECT_EQ(numbers(retire()), (Ends{16, 24}));
  tier.release(std::move(read));
  EXPECT_FALSE(retire());
  AbortedSlots aborted = tier.abort(std::move(filling));
  EXPECT_FALSE(retire());
  QuarantinedSlots lost = tier.quarantine(std::move(aborted));
  EXPECT_FALSE(retire());
  tier.release(std::move(lost));
  EXPECT_EQ(numbers(retire()), (Ends{0, 8}));
}

TEST_F(TierResizingTest, WhatAQueuedRequestWaitsForGoesLast) {
  for (std::uint64_t first = 0; first < kSlots; first += kRun) store(first, kRun);
  tier.await(kOne, keys(0, kRun));
  EXPECT_EQ(numbers(retire()), (Ends{8, 16}));
  EXPECT_EQ(numbers(retire()), (Ends{16, 24}));
  EXPECT_EQ(numbers(retire()), (Ends{24, 32}));
  EXPECT_EQ(numbers(retire()), (Ends{0, 8}));
}

TEST_F(TierResizingTest, WhatComesBackIsEmptyAndUsed) {
  store(0, kSlots);
  const std::optional<ChunkRange> gone = retire();
  ASSERT_TRUE(gone);
  store(100, 4);
  EXPECT_EQ(tier.snapshot().num_slots, kSlots - kRun);
  RetirableChunks(tier).restore(*gone);
  EXPECT_EQ(tier.snapshot().num_slots, kSlots);
  EXPECT_EQ(tier.snapshot().num_free, kRun);
  WritableSlots filling = take(200, kRun);
  for (const SlotId slot : filling.slots()) {
    EXPECT_GE(slot.value(), gone->begin.value());
    EXPECT_LT(slot.value(), gone->end.value());
  }
  tier.commit(std::move(filling));
  EXPECT_EQ(held(100, 4), 4U);
}

TEST_F(TierResizingTest, EventsTellWhatWentWithTheChunks) {
  TierOptions options;
  options.key_events = true;
  Tier telling(kSlots, std::array{1U}, options);
  telling.grow_to(kRun);
  const auto some = keys(0, 3);
  telling.commit(std::move(telling.reserve(kOne, some)).value().hand_over());
  EXPECT_EQ(telling.take_key_events().size(), 3U);
  ASSERT_TRUE(RetirableChunks(telling).retire_coldest(kRun));
  const std::vector<KeyEvent> events = telling.take_key_events();
  ASSERT_EQ(events.size(), 3U);
  for (const KeyEvent& event : events) EXPECT_FALSE(event.readable);
}

TEST_F(TierResizingTest, ARunThatIsNotReadyAsAWholeStays) {
  Tier growing(kSlots, std::array{1U});
  growing.grow_to(kRun + 3);
  EXPECT_EQ(numbers(RetirableChunks(growing).retire_coldest(kRun)), (Ends{0, 8}));
  EXPECT_FALSE(RetirableChunks(growing).retire_coldest(kRun));
  growing.grow_to(2 * kRun);
  EXPECT_EQ(numbers(RetirableChunks(growing).retire_coldest(kRun)), (Ends{8, 16}));
  RetirableChunks(growing).restore({ChunkId(24), ChunkId(32)});
  RetirableChunks(growing).restore({ChunkId(0), ChunkId(8)});
  EXPECT_EQ(growing.snapshot().num_slots, 2 * kRun);
  growing.check_invariants();
}

TEST_F(TierResizingTest, TheLastRunMayBeShort) {
  Tier odd(kRun + 3, std::array{1U});
  odd.grow_to(kRun + 3);
  EXPECT_EQ(numbers(RetirableChunks(odd).retire_coldest(kRun)), (Ends{8, 11}));
  EXPECT_EQ(numbers(RetirableChunks(odd).retire_coldest(kRun)), (Ends{0, 8}));
  RetirableChunks(odd).restore({ChunkId(8), ChunkId(11)});
  EXPECT_EQ(odd.snapshot().num_slots, 3U);
}

TEST_F(TierResizingTest, ARunMayHaveChunksOfSeveralClasses) {
  Tier mixed(8, std::array{4U, 16U}, TierOptions{Eviction::kLru, Admission::kAlways});
  const SlabClassId large(0);
  const SlabClassId small(1);
  mixed.grow_to(8);
  const auto store_in = [&](SlabClassId of, std::uint64_t first, std::size_t count) {
    mixed.commit(std::move(mixed.reserve(of, keys(first, count))).value().hand_over());
  };
  for (std::uint64_t i = 0; i < 3; ++i) {
    store_in(large, 100 * i, 4);
    store_in(small, 1000 + 100 * i, 16);
  }
  EXPECT_EQ(mixed.slab_snapshot().num_free_chunks, 2U);
  EXPECT_EQ(numbers(RetirableChunks(mixed).retire_coldest(2)), (Ends{6, 8})) << "nobody has them";
  EXPECT_EQ(mixed.slab_snapshot().num_free_chunks, 0U);
  EXPECT_EQ(numbers(RetirableChunks(mixed).retire_coldest(2)), (Ends{0, 2}));
  EXPECT_EQ(mixed.lookup_prefix(large, keys(0, 4)).size(), 0U);
  EXPECT_EQ(mixed.lookup_prefix(small, keys(1000, 16)).size(), 0U);
  EXPECT_EQ(mixed.lookup_prefix(large, keys(100, 4)).size(), 4U);
  mixed.check_invariants();
  RetirableChunks(mixed).restore({ChunkId(0), ChunkId(2)});
  EXPECT_EQ(mixed.slab_snapshot().num_free_chunks, 2U);
  store_in(small, 5000, 32);
  EXPECT_EQ(mixed.lookup_prefix(large, keys(100, 4)).size(), 4U);
  mixed.check_invariants();
}

// A class never gets a chunk that is out of use.
TEST_F(TierResizingTest, NoClassTakesWhatIsOutOfUse) {
  Tier mixed(4, std::array{4U, 16U}, TierOptions{Eviction::kLru, Admission::kAlways});
  mixed.grow_to(4);
  ASSERT_TRUE(RetirableChunks(mixed).retire_coldest(2));
  mixed.commit(std::move(mixed.reserve(SlabClassId(0), keys(0, 8))).value().hand_over());
  EXPECT_FALSE(mixed.reserve(SlabClassId(0), keys(100, 12)).ok());
  mixed.commit(std::move(mixed.reserve(SlabClassId(1), keys(200, 32))).value().hand_over());
  EXPECT_EQ(mixed.lookup_prefix(SlabClassId(0), keys(0, 8)).size(), 0U);
  mixed.check_invariants();
}

}  // namespace
}  // namespace kvferry::cpu_tier
