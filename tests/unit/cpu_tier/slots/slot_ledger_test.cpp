// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/slots/slot_ledger.hpp"

#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

namespace kvferry::cpu_tier {
namespace {

using Slots = std::vector<SlotId>;

class SlotLedgerTest : public ::testing::Test {
 protected:
  SlotLedgerTest() : ledger(4) { ledger.grow_to(4); }
  void TearDown() override { ledger.check_invariants(); }

  Slots take(std::size_t count) {
    Slots slots(count);
    ledger.take(slots);
    return slots;
  }

  SlotLedger ledger;
};
using SlotLedgerDeathTest = SlotLedgerTest;

TEST_F(SlotLedgerTest, CountsEachStateOnItsWay) {
  const Slots slots = take(3);
  EXPECT_EQ(ledger.count(SlotState::kWritable), 3U);
  ledger.commit(std::span(slots).first(1));
  ledger.abort(std::span(slots).last(2));
  ledger.quarantine(std::span(slots).last(1));
  EXPECT_EQ(ledger.count(SlotState::kFree), 1U);
  EXPECT_EQ(ledger.count(SlotState::kWritable), 0U);
  EXPECT_EQ(ledger.count(SlotState::kEvictable), 1U);
  EXPECT_EQ(ledger.count(SlotState::kAborted), 1U);
  EXPECT_EQ(ledger.count(SlotState::kQuarantined), 1U);
}

TEST_F(SlotLedgerTest, ForgottenSlotUnderTwoLeasesIsDyingUntilBothEnd) {
  const Slots slots = take(1);
  ledger.commit(slots);
  ledger.lease(slots);
  ledger.lease(slots);
  ledger.forget(slots[0]);
  ledger.end_leases(slots);
  EXPECT_EQ(ledger.state(slots[0]), SlotState::kDying);
  ledger.end_leases(slots);
  EXPECT_EQ(ledger.state(slots[0]), SlotState::kFree);
}

TEST(SlotLedgerLookup, ExactlyEvictableAndLeasedSlotsAreReadable) {
  // More slots than a word of the bits has.
  constexpr std::uint32_t kNum = 130;
  SlotLedger ledger(kNum);
  ledger.grow_to(kNum);
  Slots slots(kNum);
  ledger.take(slots);
  const auto expect_readable = [&ledger](std::uint32_t from, std::uint32_t to) {
    for (std::uint32_t slot = 0; slot < kNum; ++slot) {
      EXPECT_EQ(ledger.readable(SlotId(slot)), slot >= from && slot < to) << slot;
    }
    ledger.check_invariants();
  };
  expect_readable(0, 0);
  ledger.commit(std::span(slots).first(129));
  expect_readable(0, 129);
  const std::span<const SlotId> leased = std::span(slots).first(65);
  ledger.lease(leased);
  expect_readable(0, 129);
  Slots victims(1);
  ledger.evict(victims);
  EXPECT_EQ(victims, Slots{slots[128]});
  expect_readable(0, 128);
  // The first from under a lease, then one without.
  ledger.forget(slots[0]);
  ledger.forget(slots[127]);
  expect_readable(1, 127);
  ledger.end_leases(leased);
  expect_readable(1, 127);
}

TEST_F(SlotLedgerTest, EvictsColdestFirst) {
  const Slots slots = take(4);
  ledger.commit(slots);
  ledger.touch(slots[3]);
  Slots victims(3);
  ledger.evict(victims);
  EXPECT_EQ(victims, (Slots{slots[2], slots[1], slots[0]}));
  EXPECT_EQ(ledger.state(slots[3]), SlotState::kEvictable);
}

TEST_F(SlotLedgerDeathTest, SlotInAnotherStateThanExpectedStops) {
  const Slots slots = take(2);
  const auto first = std::span(slots).first(1);
  EXPECT_DEATH(ledger.quarantine(first), "slot 0 is writable, not aborted");
  EXPECT_DEATH(ledger.lease(first), "slot 0 is writable, not evictable");
  EXPECT_DEATH(ledger.end_leases(first), "slot 0 is writable, not leased");
  EXPECT_DEATH(ledger.touch(slots[0]), "slot 0 is writable, not evictable");
  EXPECT_DEATH(ledger.forget(slots[0]), "slot 0 is writable, not evictable");
  EXPECT_DEATH(ledger.free(first, SlotState::kAborted), "slot 0 is writable, not aborted");
  ledger.commit(first);
  EXPECT_DEATH(ledger.commit(first), "slot 0 is evictable, not writable");
  EXPECT_DEATH(ledger.abort(first), "slot 0 is evictable, not writable");
  EXPECT_DEATH(ledger.end_leases(first), "slot 0 is evictable, not leased");
}

TEST_F(SlotLedgerDeathTest, TakingOrEvictingMoreThanThereIsStops) {
  Slots five(5);
  EXPECT_DEATH(ledger.take(five), "taking 5 slots of 4");
  EXPECT_DEATH(ledger.evict(five), "evicting 5 slots of 0");
}

TEST(SlotLedger, SlotsComeAndGo) {
  SlotLedger ledger(12);
  ledger.add({4, 8});
  EXPECT_EQ(ledger.num_slots(), 4U);
  Slots slots(2);
  ledger.take(slots);
  EXPECT_EQ(slots, (Slots{SlotId(4), SlotId(5)}));
  ledger.add({0, 4});
  ledger.add({8, 12});
  ledger.check_invariants();
  EXPECT_EQ(ledger.longest_free(), SlotId(7));
  EXPECT_TRUE(ledger.any_named({4, 8}));
  EXPECT_FALSE(ledger.any_named({0, 4}));

  ledger.free(slots, SlotState::kWritable);
  ledger.remove({4, 8});
  ledger.check_invariants();
  EXPECT_EQ(ledger.state(SlotId(5)), SlotState::kAbsent);
  EXPECT_EQ(ledger.num_slots(), 8U);
  Slots rest(8);
  ledger.take(rest);
  EXPECT_EQ(rest.front(), SlotId(8));
  EXPECT_EQ(rest.back(), SlotId(3));
  ledger.check_invariants();
}

TEST(SlotLedger, AgeCountsUsesSince) {
  SlotLedger ledger(4, Segments::kTwo);
  ledger.grow_to(4);
  Slots slots(3);
  ledger.take(slots);
  ledger.commit(slots);
  EXPECT_EQ(ledger.age(slots[2]), 0U);
  ledger.touch(slots[0]);
  ledger.touch(slots[0]);
  EXPECT_EQ(ledger.age(slots[2]), 2U);
  EXPECT_EQ(ledger.age(slots[0]), 0U);
  EXPECT_EQ(ledger.coldest_of(Segment::kProbation), slots[2]);
  EXPECT_EQ(ledger.hotter_than(slots[2]), slots[1]);
  EXPECT_EQ(ledger.hotter_than(slots[1]), SlotLedger::kNoVictim);
  EXPECT_EQ(ledger.coldest_of(Segment::kProtected), slots[0]);
  ledger.await(slots[2], 1);
  EXPECT_EQ(ledger.age(slots[2]), 0U);
  EXPECT_EQ(ledger.coldest_of(Segment::kProbation), slots[1]);
}

TEST_F(SlotLedgerDeathTest, OnlyFreeSlotsGoAndOnlyAbsentOnesCome) {
  SlotLedger part(8);
  part.add({0, 4});
  Slots slots(1);
  part.take(slots);
  EXPECT_DEATH(part.remove({0, 4}), "slot 0 is writable, not free");
  EXPECT_DEATH(part.add({3, 5}), "slot 3 is free, not absent");
  EXPECT_DEATH(part.add({4, 9}), "slots behind the last one");
  EXPECT_DEATH(part.free(std::vector{SlotId(5)}, SlotState::kWritable),
               "slot 5 is absent, not writable");
}

TEST_F(SlotLedgerDeathTest, SlotBeyondTheUsableOnesStops) {
  SlotLedger larger(10);
  larger.grow_to(10);
  Slots slots(10);
  larger.take(slots);
  EXPECT_DEATH(ledger.commit(std::span(slots).last(1)), "slot 9 of 4");
}

TEST(SlotState, HasANameEach) {
  EXPECT_EQ(std::string(to_string(SlotState::kFree)), "free");
  EXPECT_EQ(std::string(to_string(SlotState::kQuarantined)), "quarantined");
}

}  // namespace
}  // namespace kvferry::cpu_tier
