// SPDX-License-Identifier: Apache-2.0
// Lookup, lease, release, forget.
#include "kvferry/cpu_tier/slots/tier.hpp"

#include "tier_fixture.hpp"

#include <array>

namespace kvferry::cpu_tier {
namespace {

class TierLoad : public TierFixture {
 protected:
  TierLoad() : TierFixture(8) {}
};
using TierLoadDeathTest = TierLoad;

TEST_F(TierLoad, LookupPrefixEndsAtTheFirstKeyThatIsNotReadable) {
  store(keys(0, 2));
  store(keys(3, 2));
  EXPECT_EQ(tier.lookup_prefix(keys(0, 5)).size(), 2U);
  EXPECT_EQ(tier.lookup_prefix(keys(3, 2)).size(), 2U);
  EXPECT_EQ(tier.lookup_prefix(keys(2, 3)).size(), 0U);
  EXPECT_EQ(tier.lookup_prefix({}).size(), 0U);
}

TEST_F(TierLoad, LookupTellsAbsentWritableAndReadable) {
  store(keys(0, 1));
  Lease held = lease(keys(0, 1));
  WritableSlots in_flight = take(keys(1, 1));
  std::array<KeyState, 3> states{};
  tier.lookup(keys(0, 3), states);
  EXPECT_EQ(states, (std::array{KeyState::kReadable, KeyState::kWritable, KeyState::kAbsent}));
  tier.commit(std::move(in_flight));
  tier.release(std::move(held));
}

TEST_F(TierLoad, LeaseIsAllOrNothing) {
  store(keys(0, 3));
  const auto result = tier.lease(keys(1, 4));
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.otherwise().first, 2U);
  EXPECT_EQ(tier.snapshot().num_leased, 0U);
}

TEST_F(TierLoad, LeaseNamesTheSlotsThatWereWritten) {
  WritableSlots written = take(keys(0, 3));
  const auto slots = ids(written.slots());
  tier.commit(std::move(written));
  Lease held = lease(keys(0, 3));
  EXPECT_EQ(ids(held.slots()), slots);
  tier.release(std::move(held));
}

// LMCache#3130, sglang#31427: evicted under a reader.
TEST_F(TierLoad, LeasedSlotIsNeverEvicted) {
  store(keys(0, 8));
  Lease held = lease(keys(0, 3));
  EXPECT_EQ(tier.reserve(keys(10, 6)).otherwise().num_available, 5U);
  store(keys(10, 5));
  EXPECT_EQ(tier.lookup_prefix(keys(0, 3)).size(), 3U);
  tier.release(std::move(held));
  store(keys(20, 8));
  EXPECT_EQ(tier.lookup_prefix(keys(0, 3)).size(), 0U);
}

TEST_F(TierLoad, SlotStaysLeasedUntilItsLastLeaseEnds) {
  store(keys(0, 8));
  Lease first = lease(keys(0, 4));
  Lease second = lease(keys(2, 4));
  EXPECT_EQ(tier.snapshot().num_leased, 6U);
  tier.release(std::move(first));
  EXPECT_EQ(tier.snapshot().num_leased, 4U);
  tier.release(std::move(second));
  EXPECT_EQ(tier.snapshot().num_leased, 0U);
  EXPECT_EQ(tier.snapshot().num_evictable, 8U);
}

TEST_F(TierLoad, KeyNamedTwiceInOneLeaseIsLeasedTwice) {
  store(keys(0, 1));
  Lease both = lease(std::vector<BlockKey>{key(0), key(0)});
  Lease one = both.split_off(1);
  tier.release(std::move(both));
  EXPECT_EQ(tier.snapshot().num_leased, 1U);
  tier.release(std::move(one));
  EXPECT_EQ(tier.snapshot().num_leased, 0U);
}

TEST_F(TierLoad, ForgottenKeyIsGoneAndItsSlotFree) {
  store(keys(0, 4));
  forget(keys(2, 2));
  EXPECT_EQ(readable(0, 4), (std::vector<std::uint64_t>{0, 1}));
  EXPECT_EQ(tier.snapshot().num_free, 6U);
}

TEST_F(TierLoad, KeyLeasedTwiceIsForgottenOnce) {
  store(keys(0, 1));
  forget(std::vector<BlockKey>{key(0), key(0)});
  EXPECT_EQ(tier.snapshot().num_free, 8U);
}

// LMCache#2004: memory freed while it is in use.
TEST_F(TierLoad, SlotForgottenWhileLeasedIsFreedByItsLastLease) {
  store(keys(0, 2));
  Lease first = lease(keys(0, 2));
  Lease second = lease(keys(0, 1));
  forget(keys(0, 2));
  EXPECT_EQ(state(key(0)), KeyState::kAbsent);
  EXPECT_EQ(tier.snapshot().num_dying, 2U);
  EXPECT_EQ(tier.reserve(keys(10, 7)).otherwise().num_available, 6U);

  tier.release(std::move(first));
  EXPECT_EQ(tier.snapshot().num_dying, 1U);
  tier.release(std::move(second));
  EXPECT_EQ(tier.snapshot().num_dying, 0U);
  EXPECT_EQ(tier.snapshot().num_free, 8U);
}

TEST_F(TierLoad, KeyForgottenWhileLeasedCanBeStoredAnew) {
  store(keys(0, 1));
  Lease old_bytes = lease(keys(0, 1));
  forget(keys(0, 1));
  store(keys(0, 1));
  Lease new_bytes = lease(keys(0, 1));
  EXPECT_NE(ids(old_bytes.slots()), ids(new_bytes.slots()));
  tier.release(std::move(old_bytes));
  EXPECT_EQ(state(key(0)), KeyState::kReadable);
  tier.release(std::move(new_bytes));
}

// A failed load doubts the slots it read, not what its keys mean by then.
TEST_F(TierLoad, ForgettingALeaseForgetsItsSlotsAndNotItsKeys) {
  store(keys(0, 3));
  Lease failed = lease(keys(0, 3));
  forget(keys(0, 1));
  store(keys(0, 1));  // Key 0 anew, in another slot.
  const std::uint64_t before = tier.eviction_epoch();

  tier.forget(failed);
  EXPECT_EQ(readable(0, 3), (std::vector<std::uint64_t>{0}));
  EXPECT_EQ(tier.snapshot().num_dying, 3U);
  EXPECT_EQ(tier.eviction_epoch(), before + 1);
  tier.forget(failed);
  EXPECT_EQ(tier.eviction_epoch(), before + 1);
  tier.release(std::move(failed));
  EXPECT_EQ(tier.snapshot().num_free, 7U);
}

TEST_F(TierLoad, AWithdrawnSlotIsNeverUsedAgain) {
  store(keys(0, 8));
  Lease held = lease(keys(0, 3));
  const SlotId damaged = held.slots()[1];
  const std::uint64_t before = tier.eviction_epoch();
  EXPECT_EQ(tier.withdraw(held, {&damaged, 1}),
            (std::vector<WithdrawnSlot>{{damaged, key(1), true}}));
  EXPECT_EQ(readable(0, 3), (std::vector<std::uint64_t>{0, 2}));
  EXPECT_EQ(tier.eviction_epoch(), before + 1);
  EXPECT_EQ(tier.snapshot().num_dying, 1U);
  EXPECT_EQ(tier.snapshot().num_set_aside, 0U);
  tier.release(std::move(held));
  EXPECT_EQ(tier.snapshot().num_dying, 0U);
  EXPECT_EQ(tier.snapshot().num_quarantined, 1U);
  EXPECT_EQ(tier.snapshot().num_set_aside, 1U);
  EXPECT_TRUE(tier.snapshot().conserved());
  // All others go round, many times.
  EXPECT_EQ(tier.reserve(keys(100, 8)).otherwise().num_available, 7U);
  for (std::uint64_t round = 0; round < 5; ++round) {
    WritableSlots slots = take(keys(100 * (round + 1), 7));
    for (const SlotId slot : slots.slots()) EXPECT_NE(slot, damaged);
    if (round % 2 == 0) {
      tier.commit(std::move(slots));
    } else {
      tier.release(tier.abort(std::move(slots)));
    }
  }
  tier.forget_all();
  EXPECT_EQ(tier.snapshot().num_free, 7U);
}

// Two requests load one block: both find it damaged, the first while the second still reads.
TEST_F(TierLoad, ASlotIsWithdrawnOnceHoweverManyFindItDamaged) {
  store(keys(0, 2));
  Lease first = lease(keys(0, 2));
  Lease second = lease(keys(0, 2));
  const SlotId damaged = first.slots()[0];
  static_cast<void>(tier.withdraw(first, {&damaged, 1}));
  tier.release(std::move(first));
  store(keys(0, 1));  // Anew, in another slot.
  EXPECT_EQ(tier.withdraw(second, {&damaged, 1}),
            (std::vector<WithdrawnSlot>{{damaged, std::nullopt, true}}));
  EXPECT_EQ(readable(0, 2), (std::vector<std::uint64_t>{0, 1}));
  tier.release(std::move(second));
  EXPECT_EQ(tier.snapshot().num_set_aside, 1U);
}

TEST_F(TierLoad, ASlotThatALeaseHasTwiceIsSetAsideOnce) {
  store(keys(0, 1));
  Lease held = lease(std::array{key(0), key(0)});
  const SlotId damaged = held.slots()[0];
  static_cast<void>(tier.withdraw(held, {&damaged, 1}));
  tier.release(std::move(held));
  EXPECT_EQ(tier.snapshot().num_set_aside, 1U);
  EXPECT_TRUE(tier.snapshot().conserved());
}

// Another load of it failed before, for another reason.
TEST_F(TierLoad, WhatWasForgottenBeforeIsWithdrawnToo) {
  store(keys(0, 1));
  Lease held = lease(keys(0, 1));
  const SlotId damaged = held.slots()[0];
  tier.forget(held);
  static_cast<void>(tier.withdraw(held, {&damaged, 1}));
  tier.release(std::move(held));
  EXPECT_EQ(tier.snapshot().num_set_aside, 1U);
  EXPECT_EQ(tier.snapshot().num_free, 7U);
}

TEST_F(TierLoad, ForgetAllLeavesWritableKeysToTheirOwners) {
  WritableSlots in_flight = take(keys(0, 2));
  tier.forget_all();
  EXPECT_EQ(state(key(0)), KeyState::kWritable);
  tier.commit(std::move(in_flight));
  EXPECT_EQ(tier.lookup_prefix(keys(0, 2)).size(), 2U);
}

TEST_F(TierLoad, ForgetAllForgetsEveryReadableKey) {
  store(keys(0, 6));
  Lease held = lease(keys(4, 2));
  tier.forget_all();
  EXPECT_TRUE(readable(0, 6).empty());
  EXPECT_EQ(tier.snapshot().num_dying, 2U);
  EXPECT_EQ(tier.snapshot().num_free, 6U);
  tier.release(std::move(held));
  EXPECT_EQ(ids(tier.reserve(keys(10, 4)).value().slots()).size(), 4U);
}

TEST_F(TierLoad, TierForgottenWholeHandsOutAscendingSlotsAgain) {
  store(keys(0, 3));
  store(keys(10, 5));
  tier.touch(keys(0, 3));
  tier.forget_all();
  EXPECT_EQ(ids(tier.reserve(keys(20, 8)).value().slots()),
            (std::vector<std::uint32_t>{0, 1, 2, 3, 4, 5, 6, 7}));
}

TEST_F(TierLoadDeathTest, LookupWithSpansOfDifferentLengthsStops) {
  std::array<KeyState, 2> states{};
  EXPECT_DEATH(tier.lookup(keys(0, 3), states), "spans of different lengths");
}

/// More keys than any internal chunk holds.
class TierLarge : public TierFixture {
 protected:
  TierLarge() : TierFixture(1000) {}
};

TEST_F(TierLarge, CallsAcrossChunkBordersAgreeWithTheKeys) {
  store(keys(0, 777));
  for (const std::size_t hole : {776U, 640U, 500U, 129U, 128U, 127U, 65U, 64U, 63U, 1U, 0U}) {
    forget(keys(hole, 1));
    EXPECT_EQ(tier.lookup_prefix(keys(0, 777)).size(), hole);
    EXPECT_EQ(tier.lease(keys(0, 777)).otherwise().first, hole);
  }
  EXPECT_EQ(tier.snapshot().num_evictable, 777U - 11U);
  Lease held = lease(keys(130, 300));
  tier.forget(held);
  EXPECT_EQ(tier.snapshot().num_dying, 300U);
  tier.release(std::move(held));
  tier.forget_all();
  EXPECT_EQ(tier.snapshot().num_free, 1000U);
}

}  // namespace
}  // namespace kvferry::cpu_tier
