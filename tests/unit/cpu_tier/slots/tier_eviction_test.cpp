// SPDX-License-Identifier: Apache-2.0
// Which keys leave first, and the eviction epoch.
#include "kvferry/cpu_tier/slots/tier.hpp"

#include "tier_fixture.hpp"

namespace kvferry::cpu_tier {
namespace {

using Numbers = std::vector<std::uint64_t>;

class TierEviction : public TierFixture {
 protected:
  TierEviction() : TierFixture(8) {}
};

TEST_F(TierEviction, TailOfAPrefixLeavesFirst) {
  store(keys(0, 8));
  store(keys(100, 3));
  EXPECT_EQ(readable(0, 8), (Numbers{0, 1, 2, 3, 4}));
}

TEST_F(TierEviction, APrefixStoredInPiecesLeavesFromItsTail) {
  tier.commit(take(keys(0, 3)));
  tier.commit(take(keys(3, 3)), key(2));
  tier.commit(take(keys(6, 2)), key(5));
  store(keys(100, 4));
  EXPECT_EQ(readable(0, 8), (Numbers{0, 1, 2, 3}));
}

TEST_F(TierEviction, WithoutAnEvictablePredecessorASetIsTheMostRecent) {
  store(keys(0, 3));
  Lease leased = lease(keys(0, 1));
  tier.commit(take(keys(10, 2)), key(0));    // Leased.
  tier.commit(take(keys(20, 2)), key(999));  // Absent.
  tier.release(std::move(leased));
  store(keys(100, 5));
  EXPECT_EQ(readable(0, 3), (Numbers{0}));
  EXPECT_TRUE(readable(10, 2).empty());
  EXPECT_EQ(readable(20, 2), (Numbers{20, 21}));
}

TEST_F(TierEviction, OlderPrefixLeavesWholeBeforeANewerOne) {
  store(keys(0, 4));
  store(keys(10, 4));
  store(keys(100, 5));
  EXPECT_TRUE(readable(0, 4).empty());
  EXPECT_EQ(readable(10, 4), (Numbers{10, 11, 12}));
}

TEST_F(TierEviction, TouchedPrefixOutlivesANewerOne) {
  store(keys(0, 4));
  store(keys(10, 4));
  tier.touch(keys(0, 4));
  store(keys(100, 5));
  EXPECT_EQ(readable(0, 4), (Numbers{0, 1, 2}));
  EXPECT_TRUE(readable(10, 4).empty());
}

TEST_F(TierEviction, ReleasedLeaseMakesItsPrefixTheMostRecent) {
  store(keys(0, 4));
  store(keys(10, 4));
  tier.release(lease(keys(0, 4)));
  store(keys(100, 5));
  EXPECT_EQ(readable(0, 4), (Numbers{0, 1, 2}));
  EXPECT_TRUE(readable(10, 4).empty());
}

TEST_F(TierEviction, SlotsLeasedTwiceBecomeRecentWithTheLastRelease) {
  store(keys(0, 4));
  Lease first = lease(keys(0, 4));
  Lease second = lease(keys(0, 4));
  tier.release(std::move(first));
  store(keys(10, 4));
  tier.release(std::move(second));
  store(keys(100, 4));
  EXPECT_EQ(readable(0, 4).size(), 4U);
}

TEST_F(TierEviction, TouchIgnoresAbsentWritableAndLeasedKeys) {
  store(keys(0, 4));
  Lease held = lease(keys(0, 1));
  WritableSlots in_flight = take(keys(4, 1));
  tier.touch(keys(0, 6));
  const TierSnapshot now = tier.snapshot();
  EXPECT_EQ(now.num_evictable, 3U);
  EXPECT_EQ(now.num_leased, 1U);
  EXPECT_EQ(now.num_writable, 1U);
  tier.commit(std::move(in_flight));
  tier.release(std::move(held));
}

TEST_F(TierEviction, LookupTouchesNothing) {
  store(keys(0, 4));
  store(keys(10, 4));
  EXPECT_EQ(tier.lookup_prefix(keys(0, 4)).size(), 4U);
  store(keys(100, 4));
  EXPECT_TRUE(readable(0, 4).empty());
}

TEST_F(TierEviction, EvictedPrefixGivesItsSlotsInAscendingOrder) {
  store(keys(0, 8));
  EXPECT_EQ(ids(tier.reserve(keys(100, 4)).value().slots()),
            (std::vector<std::uint32_t>{4, 5, 6, 7}));
}

TEST_F(TierEviction, EpochMovesOncePerCallThatEvicts) {
  store(keys(0, 8));
  const std::uint64_t before = tier.eviction_epoch();
  store(keys(100, 5));
  EXPECT_EQ(tier.eviction_epoch(), before + 1);
}

TEST_F(TierEviction, EpochMovesOncePerCallThatForgets) {
  store(keys(0, 8));
  Lease held = lease(keys(0, 2));
  const std::uint64_t before = tier.eviction_epoch();
  forget(keys(0, 4));
  EXPECT_EQ(tier.eviction_epoch(), before + 1);
  tier.forget_all();
  EXPECT_EQ(tier.eviction_epoch(), before + 2);
  tier.release(std::move(held));
}

TEST_F(TierEviction, EpochStaysWhileEveryReadableKeyStaysReadable) {
  store(keys(0, 4));
  const std::uint64_t before = tier.eviction_epoch();
  tier.release(tier.abort(take(keys(10, 4))));
  { auto dropped = tier.reserve(keys(20, 4)); }
  { auto exhausted = tier.reserve(keys(30, 9)); }
  tier.release(lease(keys(0, 4)));
  tier.touch(keys(0, 4));
  EXPECT_EQ(tier.eviction_epoch(), before);
}

TEST_F(TierEviction, EvictedKeyCanBeStoredAgain) {
  store(keys(0, 8));
  store(keys(10, 8));
  EXPECT_EQ(state(key(0)), KeyState::kAbsent);
  store(keys(0, 8));
  EXPECT_EQ(tier.lookup_prefix(keys(0, 8)).size(), 8U);
}

}  // namespace
}  // namespace kvferry::cpu_tier
