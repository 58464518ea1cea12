// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/slot_ledger.hpp"

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

TEST_F(SlotLedgerTest, EvictsColdestFirst) {
  const Slots slots = take(4);
  ledger.commit(slots);
  ledger.touch(slots[3]);
  Slots victims(3);
  ledger.evict_coldest(victims);
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
  EXPECT_DEATH(ledger.take(five), "slot 4 of 4");
  EXPECT_DEATH(ledger.evict_coldest(five), "slot 4 of 4");
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
