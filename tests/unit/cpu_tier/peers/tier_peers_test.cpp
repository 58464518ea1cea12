// SPDX-License-Identifier: Apache-2.0
// Tiers of several instances over one shared memory: what one finds, reads and evicts of another's
// blocks.
#include "kvferry/cpu_tier/slots/tier.hpp"

#include "shared_instance.hpp"
#include "tier_peers_fixture.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace kvferry::cpu_tier {
namespace {

TEST_F(TierPeersTest, WhatOneStoresAnotherFindsAndLeases) {
  Instance a(rig_, "a");
  Instance b(rig_, "b");
  const auto stored = a.store(0, 3);
  EXPECT_EQ(b.held(0, 4), 3U);
  EXPECT_EQ(b.snapshot().num_guests, 3U);
  EXPECT_EQ(b.snapshot().num_slots, 0U) << "none of its own";
  Lease lease = b.lease(0, 3);
  EXPECT_EQ(ids(lease.slots()), stored);
  EXPECT_EQ(b.snapshot().num_leased_guests, 3U);
  b.tier().release(std::move(lease));
  EXPECT_EQ(b.snapshot().num_leased_guests, 0U);
}

// Hints of what was evicted would come to take the places of others.
TEST_F(TierPeersTest, WhatATierHoldsIsFoundHoweverOftenItWasTurnedOver) {
  Instance a(rig_, "a");
  Instance b(rig_, "b");
  for (std::uint64_t round = 0; round < 50; ++round) {
    a.store(16 * round, 16);
    EXPECT_EQ(b.num_readable(16 * round, 16), 16U) << "in round " << round;
    b.tier().forget_all();
  }
}

TEST_F(TierPeersTest, ASlotIsFillingFromItsReservationToTheCommit) {
  Instance a(rig_, "a");
  const auto reserve = [&] {
    return std::move(a.all().reserve(Instance::kOnly, keys(0, 1))).value();
  };
  std::uint32_t slot = 0;
  {
    const auto given_back = reserve();
    slot = given_back.slots()[0].value();
    EXPECT_EQ(state(slot), SharedState::kFilling);
  }
  EXPECT_EQ(state(slot), SharedState::kFree);
  WritableSlots slots = reserve().hand_over();
  AbortedSlots aborted = a.tier().abort(std::move(slots));
  EXPECT_EQ(state(slot), SharedState::kFilling) << "a device may still write it";
  a.tier().release(std::move(aborted));
  EXPECT_EQ(state(slot), SharedState::kFree);
}

TEST_F(TierPeersTest, WhatIsFoundStaysUntilNobodyAsksForIt) {
  Instance a(rig_, "a");
  Instance b(rig_, "b");
  a.store(0, 16);
  ASSERT_EQ(b.held(0, 16), 16U);
  auto refused = a.all().reserve(Instance::kOnly, keys(100, 1));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.otherwise().num_available, 0U);
  b.tend();
  ASSERT_EQ(b.held(0, 8), 8U);
  b.tend();
  EXPECT_EQ(b.snapshot().num_guests, 8U);
  a.store(100, 8);
  EXPECT_EQ(a.held(0, 16), 8U) << "the rest of them was evicted";
}

TEST_F(TierPeersTest, AGuestGoesWithItsLastLease) {
  Instance a(rig_, "a");
  Instance b(rig_, "b");
  a.store(0, 4);
  Lease one = b.lease(0, 4);
  Lease other = b.lease(0, 2);
  const PrefixHit hit = b.tier().lookup_prefix(keys(0, 1));
  const std::uint64_t epoch = b.tier().eviction_epoch();
  b.tier().release(std::move(one));
  EXPECT_EQ(b.snapshot().num_guests, 2U);
  EXPECT_GT(b.tier().eviction_epoch(), epoch);
  b.tier().release(std::move(other));
  EXPECT_EQ(b.snapshot().num_guests, 1U) << "asked for since it was leased";
  EXPECT_FALSE(b.tier().lease(hit, 1).ok()) << "an answer may be of a guest that is gone";
  a.store(100, 15);
  EXPECT_EQ(a.held(0, 1), 1U);
}

TEST_F(TierPeersTest, AKeyMayBeAskedForTwiceAtOnce) {
  Instance a(rig_, "a");
  Instance b(rig_, "b");
  WritableSlots other = b.take(0, 1);
  a.store(0, 1);
  b.tier().commit(std::move(other));
  Instance c(rig_, "c");
  std::vector<BlockKey> twice = keys(0, 1);
  twice.push_back(twice[0]);
  const PrefixHit hit = c.tier().lookup_prefix(twice);
  ASSERT_EQ(hit.size(), 2U);
  EXPECT_EQ(hit.slots[0], hit.slots[1]);
  EXPECT_EQ(c.snapshot().num_guests, 1U);
  c.tier().release(std::move(c.tier().lease(twice)).value());
  EXPECT_EQ(c.snapshot().num_guests, 0U);
}

TEST_F(TierPeersTest, WhatAGuestHoldsMayBeStoredAllTheSame) {
  Instance a(rig_, "a");
  Instance b(rig_, "b");
  a.store(0, 2);
  Lease lease = b.lease(0, 1);
  ASSERT_EQ(b.held(0, 2), 2U);
  const std::uint64_t epoch = b.tier().eviction_epoch();
  const auto stored = b.store(0, 2);
  EXPECT_GT(b.tier().eviction_epoch(), epoch);
  EXPECT_EQ(b.snapshot().num_guests, 1U) << "what is leased stays";
  EXPECT_EQ(ids(b.tier().lookup_prefix(keys(0, 2)).slots), stored);
  b.tier().release(std::move(lease));
  EXPECT_EQ(b.snapshot().num_guests, 0U);
  b.tier().forget_all();
  EXPECT_EQ(b.held(0, 2), 2U) << "the other's";
}

TEST_F(TierPeersTest, ALeasedGuestStaysAndAnAnswerEndsWithItsGuests) {
  Instance a(rig_, "a");
  Instance b(rig_, "b");
  a.store(0, 4);
  const PrefixHit hit = b.tier().lookup_prefix(keys(0, 4));
  ASSERT_EQ(hit.size(), 4U);
  Lease lease = std::move(b.tier().lease(hit, 2)).value();
  b.drop_guests();
  EXPECT_EQ(b.snapshot().num_guests, 2U);
  EXPECT_FALSE(b.tier().lease(hit, 4).ok()) << "two of them are not held any more";
  b.tier().release(std::move(lease));
}

TEST_F(TierPeersTest, WhatNobodyAsksForIsLetGoWithoutAStep) {
  Instance a(rig_, "a");
  Instance b(rig_, "b");
  a.store(0, 4);
  ASSERT_EQ(b.held(0, 4), 4U);
  const auto now = std::chrono::steady_clock::now();
  b.all().hold_still();
  for (int i = 0; i < 3; ++i) b.all().tend(now + i * std::chrono::seconds(1));
  EXPECT_EQ(b.snapshot().num_guests, 4U) << "its step is not over";
  b.all().end_step();
  EXPECT_EQ(b.snapshot().num_guests, 4U) << "asked for since the last time";
  b.all().tend(now + std::chrono::seconds(2));
  EXPECT_EQ(b.snapshot().num_guests, 4U) << "a moment ago";
  b.all().tend(now + std::chrono::seconds(3));
  EXPECT_EQ(b.snapshot().num_guests, 0U);
}

TEST_F(TierPeersTest, WhoIsAlwaysInAStepLetsGoOfWhatNobodyAsksForToo) {
  Instance a(rig_, "a");
  Instance b(rig_, "b");
  a.store(0, 4);
  ASSERT_EQ(b.held(0, 4), 4U);
  const auto now = std::chrono::steady_clock::now();
  for (int i = 0; i < 2; ++i) {
    b.all().hold_still();
    b.all().tend(now + i * std::chrono::seconds(1));
    EXPECT_EQ(b.snapshot().num_guests, 4U);
    b.all().end_step();
  }
  EXPECT_EQ(b.snapshot().num_guests, 0U);
}

TEST_F(TierPeersTest, WhatOthersUseIsEvictedLater) {
  Instance a(rig_, "a");
  Instance b(rig_, "b");
  a.store(0, 8);
  a.store(8, 8);
  b.tier().release(b.lease(0, 4));
  b.drop_guests();
  a.store(100, 8);
  EXPECT_EQ(a.held(0, 8), 4U);
  EXPECT_EQ(a.held(8, 8), 4U) << "evicted instead of what the other used";
}

TEST_F(TierPeersTest, WhatWasEvictedForAReservationThatFailedIsFree) {
  Instance a(rig_, "a");
  Instance b(rig_, "b");
  a.store(0, 16);
  Lease read = b.lease(0, 2);
  auto refused = a.all().reserve(Instance::kOnly, keys(100, 16));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.otherwise().num_available, 14U);
  a.all().check_invariants();
  a.store(100, 10);
  b.tier().release(std::move(read));
  a.store(200, 12);  // Some slots are free, some are evicted for it.
  EXPECT_EQ(a.snapshot().num_evicted_total, 22U);
}

TEST_F(TierPeersTest, WhatAnotherHasIsNotStoredAgain) {
  Instance a(rig_, "a");
  Instance b(rig_, "b");
  a.store(0, 2);
  std::vector<OfferAnswer> answers(3);
  b.all().offer(Instance::kOnly, keys(0, 3), answers);
  EXPECT_EQ(answers, (std::vector{OfferAnswer::kHeld, OfferAnswer::kHeld, OfferAnswer::kStore}));
}

TEST_F(TierPeersTest, WhatIsForgottenWhileAnotherReadsItStaysAside) {
  Instance a(rig_, "a");
  Instance b(rig_, "b");
  const auto slots = a.store(0, 1);
  Lease lease = b.lease(0, 1);
  a.tier().forget_all();
  EXPECT_EQ(state(slots[0]), SharedState::kDying);
  EXPECT_EQ(a.snapshot().num_set_aside, 1U);
  a.tend();
  EXPECT_EQ(a.snapshot().num_set_aside, 1U);
  b.tier().release(std::move(lease));
  b.drop_guests();
  a.tend();
  EXPECT_EQ(a.snapshot().num_set_aside, 0U);
  EXPECT_EQ(state(slots[0]), SharedState::kFree);
}

TEST_F(TierPeersTest, WhatIsForgottenUnderALeaseOfItsOwnerStaysAsideBehindIt) {
  Instance a(rig_, "a");
  Instance b(rig_, "b");
  const auto slots = a.store(0, 1);
  Lease own = a.lease(0, 1);
  Lease foreign = b.lease(0, 1);
  a.tier().forget(own);
  EXPECT_EQ(state(slots[0]), SharedState::kDying);
  EXPECT_EQ(a.snapshot().num_dying, 1U);
  a.tier().release(std::move(own));
  EXPECT_EQ(a.snapshot().num_set_aside, 1U);
  b.tier().release(std::move(foreign));
  b.drop_guests();
  a.tend();
  EXPECT_EQ(a.snapshot().num_free, 4U);
}

TEST_F(TierPeersTest, AGuestThatIsDoubtedIsFoundNoMore) {
  Instance a(rig_, "a");
  Instance b(rig_, "b");
  a.store(0, 1);
  Lease lease = b.lease(0, 1);
  const std::uint64_t epoch = b.tier().eviction_epoch();
  b.tier().forget(lease);
  EXPECT_GT(b.tier().eviction_epoch(), epoch);
  EXPECT_EQ(b.held(0, 1), 0U);
  b.tier().release(std::move(lease));
  EXPECT_EQ(b.snapshot().num_guests, 0U);
  EXPECT_EQ(b.held(0, 1), 0U);
  EXPECT_EQ(a.held(0, 1), 1U) << "its owner may serve it: maybe the way was bad, not the slot";
  std::vector<OfferAnswer> answers(1);
  b.all().offer(Instance::kOnly, keys(0, 1), answers);
  EXPECT_EQ(answers[0], OfferAnswer::kStore) << "one of its own";
}

TEST_F(TierPeersTest, AGuestThatIsWithdrawnIsFoundByNobodyAndNeverUsedAgain) {
  Instance a(rig_, "a");
  Instance b(rig_, "b");
  Instance c(rig_, "c");
  const auto slots = a.store(0, 4);
  Lease lease = b.lease(0, 1);
  const SlotId damaged = lease.slots()[0];
  EXPECT_EQ(b.tier().withdraw(lease, {&damaged, 1}),
            (std::vector<WithdrawnSlot>{{damaged, key(0), false}}));
  EXPECT_EQ(b.num_readable(0, 4), 3U);
  EXPECT_EQ(c.num_readable(0, 4), 3U);
  // Its owner learns of it at its next look, and until then does not evict it.
  EXPECT_EQ(a.num_readable(0, 4), 4U);
  a.tend();
  EXPECT_EQ(a.num_readable(0, 4), 3U);
  EXPECT_EQ(a.snapshot().num_set_aside, 1U);
  b.tier().release(std::move(lease));
  b.drop_guests();
  c.drop_guests();
  a.tend();
  EXPECT_EQ(a.snapshot().num_set_aside, 1U);
  EXPECT_TRUE(rig_.word(place_of(damaged, Instance::kChunkSlots)).withdrawn());
  for (std::uint64_t round = 1; round < 9; ++round) {
    const auto taken = a.store(100 * round, 3);
    EXPECT_EQ(std::count(taken.begin(), taken.end(), damaged.value()), 0);
  }
  EXPECT_EQ(slots[0], damaged.value());
}

// A step may lease what it has found.
TEST_F(TierPeersTest, WhatAPeerWithdrawsDuringAStepIsForgottenAfterIt) {
  Instance a(rig_, "a");
  Instance b(rig_, "b");
  a.store(0, 4);
  Lease lease = b.lease(0, 1);
  const SlotId damaged = lease.slots()[0];
  a.all().hold_still();
  ASSERT_EQ(a.num_readable(0, 4), 4U);
  static_cast<void>(b.tier().withdraw(lease, {&damaged, 1}));
  a.tend();
  EXPECT_EQ(a.num_readable(0, 4), 4U);
  a.tier().release(a.lease(0, 4));
  a.all().end_step();
  EXPECT_EQ(a.num_readable(0, 4), 3U);
  EXPECT_EQ(a.snapshot().num_set_aside, 1U);
  b.tier().release(std::move(lease));
}

TEST_F(TierPeersTest, AnOwnSlotThatIsWithdrawnIsFoundByNoPeer) {
  Instance a(rig_, "a");
  Instance b(rig_, "b");
  a.store(0, 2);
  Lease foreign = b.lease(0, 1);
  Lease own = a.lease(0, 2);
  const SlotId damaged = own.slots()[0];
  EXPECT_EQ(a.tier().withdraw(own, {&damaged, 1}),
            (std::vector<WithdrawnSlot>{{damaged, key(0), true}}));
  a.tier().release(std::move(own));
  b.tier().release(std::move(foreign));
  b.drop_guests();
  a.tend();
  EXPECT_EQ(b.num_readable(0, 2), 1U);
  EXPECT_EQ(a.num_readable(0, 2), 1U);
  EXPECT_EQ(a.snapshot().num_set_aside, 1U);
}

// The owner's own lease is not in the word, which says free once the owner has forgotten the slot.
TEST_F(TierPeersTest, AnOwnSlotThatWasForgottenBeforeIsWithdrawnToo) {
  SlotId damaged;
  {
    Instance a(rig_, "a");
    a.store(0, 1);
    Lease own = a.lease(0, 1);
    damaged = own.slots()[0];
    a.tier().forget(own);
    static_cast<void>(a.tier().withdraw(own, {&damaged, 1}));
    a.tier().release(std::move(own));
    a.tend();
    EXPECT_EQ(a.snapshot().num_set_aside, 1U);
    EXPECT_EQ(a.directory().num_damaged(), 0U);
  }
  Instance b(rig_, {.name = "b", .name_space = 1, .grace = std::chrono::nanoseconds(0)});
  for (std::uint64_t round = 1; round < 9; ++round) {
    for (std::uint64_t block = 0; block < 15; ++block) {
      EXPECT_NE(b.store(1000 * round + block, 1)[0], damaged.value());
    }
  }
  EXPECT_EQ(b.snapshot().num_set_aside, 1U);
}

// Its owner was not told: it is not evicted, and goes with its chunk.
TEST_F(TierPeersTest, WhatIsWithdrawnStaysOutOfUseForWhoTakesTheChunk) {
  Instance b(rig_, "b");
  SlotId damaged;
  {
    Instance a(rig_, "a");
    a.store(0, 4);
    Lease lease = b.lease(0, 1);
    damaged = lease.slots()[0];
    static_cast<void>(b.tier().withdraw(lease, {&damaged, 1}));
    b.tier().release(std::move(lease));
  }
  b.drop_guests();
  // All of the memory, in which it finds what the other has left.
  for (std::uint64_t round = 1; round < 9; ++round) {
    for (std::uint64_t block = 0; block < 15; ++block) {
      const auto taken = b.store(1000 * round + block, 1);
      EXPECT_NE(taken[0], damaged.value());
    }
  }
  EXPECT_EQ(b.num_chunks(), Instance::kNumChunks);
  EXPECT_EQ(b.snapshot().num_set_aside, 1U);
  EXPECT_EQ(b.num_readable(0, 1), 0U);
}

TEST_F(TierPeersTest, AfterAResetNeitherFindsTheOther) {
  Instance a(rig_, "a");
  Instance b(rig_, "b");
  a.store(0, 1);
  b.store(10, 1);
  ASSERT_EQ(a.held(10, 1), 1U);
  a.tier().forget_all();
  a.directory().leave_name_space();
  EXPECT_EQ(a.held(10, 1), 0U);
  a.store(20, 1);
  EXPECT_EQ(a.held(20, 1), 1U);
  EXPECT_EQ(b.held(20, 1), 0U);
  EXPECT_EQ(b.held(0, 1), 0U);
}

TEST_F(TierPeersTest, EventsAreOfTheBlocksThatAnInstanceHasItself) {
  TierOptions options = Instance::kPlainLru;
  options.key_events = true;
  auto a = std::make_unique<Instance>(rig_, TierDirectory::Identity{.name = "a", .name_space = 1},
                                      options);
  Instance b(rig_, TierDirectory::Identity{.name = "b", .name_space = 1}, options);
  a->store(0, 16);
  ASSERT_EQ(b.held(0, 16), 16U);
  EXPECT_TRUE(b.tier().take_key_events().empty()) << "a guest is another one's";
  b.drop_guests();
  a.reset();
  b.store(100, 1);
  std::size_t num_gained = 0;
  std::size_t num_lost = 0;
  for (const KeyEvent& event : b.tier().take_key_events())
    ++(event.readable ? num_gained : num_lost);
  EXPECT_EQ(num_gained - num_lost, b.snapshot().num_evictable);
  EXPECT_EQ(num_lost, 1U);
}

}  // namespace
}  // namespace kvferry::cpu_tier
