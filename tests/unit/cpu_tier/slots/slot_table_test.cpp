// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/slots/slot_table.hpp"

#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

namespace kvferry::cpu_tier {
namespace {

using Slots = std::vector<SlotId>;

class SlotTableTest : public ::testing::Test {
 protected:
  SlotTableTest() : table(4) { table.add({0, 4}); }
  void TearDown() override { table.check_invariants(); }

  Slots take(std::size_t count) {
    Slots slots(count);
    table.take(slots);
    return slots;
  }

  SlotTable table;
};
using SlotTableDeathTest = SlotTableTest;

TEST_F(SlotTableTest, CountsEachStateOnItsWay) {
  const Slots slots = take(3);
  EXPECT_EQ(table.count(SlotState::kWritable), 3U);
  table.commit(std::span(slots).first(1));
  table.abort(std::span(slots).last(2));
  table.quarantine(std::span(slots).last(1));
  EXPECT_EQ(table.count(SlotState::kFree), 1U);
  EXPECT_EQ(table.count(SlotState::kWritable), 0U);
  EXPECT_EQ(table.count(SlotState::kEvictable), 1U);
  EXPECT_EQ(table.count(SlotState::kAborted), 1U);
  EXPECT_EQ(table.count(SlotState::kQuarantined), 1U);
}

TEST_F(SlotTableTest, ForgottenSlotUnderTwoLeasesIsDyingUntilBothEnd) {
  const Slots slots = take(1);
  table.commit(slots);
  ASSERT_EQ(table.lease(slots), slots.size());
  ASSERT_EQ(table.lease(slots), slots.size());
  table.forget(slots[0]);
  ASSERT_EQ(table.end_leases(slots), slots.size());
  EXPECT_EQ(table.state(slots[0]), SlotState::kDying);
  ASSERT_EQ(table.end_leases(slots), slots.size());
  EXPECT_EQ(table.state(slots[0]), SlotState::kFree);
}

TEST(SlotTableLookup, ExactlyEvictableAndLeasedSlotsAreReadable) {
  // More slots than a word of the bits has.
  constexpr std::uint32_t kNum = 130;
  SlotTable table(kNum);
  table.add({0, kNum});
  Slots slots(kNum);
  table.take(slots);
  const auto expect_readable = [&table](std::uint32_t from, std::uint32_t to) {
    for (std::uint32_t slot = 0; slot < kNum; ++slot) {
      EXPECT_EQ(table.readable(SlotId(slot)), slot >= from && slot < to) << slot;
    }
    table.check_invariants();
  };
  expect_readable(0, 0);
  table.commit(std::span(slots).first(129));
  expect_readable(0, 129);
  const std::span<const SlotId> leased = std::span(slots).first(65);
  ASSERT_EQ(table.lease(leased), leased.size());
  expect_readable(0, 129);
  Slots victims(1);
  table.evict(victims);
  EXPECT_EQ(victims, Slots{slots[128]});
  expect_readable(0, 128);
  // The first from under a lease, then one without.
  table.forget(slots[0]);
  table.forget(slots[127]);
  expect_readable(1, 127);
  ASSERT_EQ(table.end_leases(leased), leased.size());
  expect_readable(1, 127);
}

TEST(SlotTableLookup, LeasesGoUpToAnAbsentSlotAndEndDownToOne) {
  SlotTable table(4);
  table.add({0, 3});
  Slots slots(3);
  table.take(slots);
  table.commit(slots);
  const Slots mixed{slots[0], SlotId(3), slots[1], slots[2]};
  EXPECT_EQ(table.lease(mixed), 1U);
  EXPECT_EQ(table.lease(std::span(mixed).subspan(2)), 2U);
  EXPECT_EQ(table.end_leases(mixed), 2U);
  EXPECT_EQ(table.state(slots[0]), SlotState::kLeased);
  EXPECT_EQ(table.end_leases(std::span(mixed).first(1)), 1U);
  EXPECT_EQ(table.count(SlotState::kEvictable), 3U);
  table.check_invariants();
}

TEST_F(SlotTableTest, EvictsColdestFirst) {
  const Slots slots = take(4);
  table.commit(slots);
  table.touch(slots[3]);
  Slots victims(3);
  table.evict(victims);
  EXPECT_EQ(victims, (Slots{slots[2], slots[1], slots[0]}));
  EXPECT_EQ(table.state(slots[3]), SlotState::kEvictable);
}

TEST_F(SlotTableDeathTest, SlotInAnotherStateThanExpectedStops) {
  const Slots slots = take(2);
  const auto first = std::span(slots).first(1);
  EXPECT_DEATH(table.quarantine(first), "slot 0 is writable, not aborted");
  EXPECT_DEATH(static_cast<void>(table.lease(first)), "slot 0 is writable, not evictable");
  EXPECT_DEATH(static_cast<void>(table.end_leases(first)), "slot 0 is writable, not leased");
  EXPECT_DEATH(table.touch(slots[0]), "slot 0 is writable, not evictable");
  EXPECT_DEATH(table.forget(slots[0]), "slot 0 is writable, not evictable");
  EXPECT_DEATH(table.free(first, SlotState::kAborted), "slot 0 is writable, not aborted");
  table.commit(first);
  EXPECT_DEATH(table.commit(first), "slot 0 is evictable, not writable");
  EXPECT_DEATH(table.abort(first), "slot 0 is evictable, not writable");
  EXPECT_DEATH(static_cast<void>(table.end_leases(first)), "slot 0 is evictable, not leased");
}

TEST_F(SlotTableDeathTest, TakingOrEvictingMoreThanThereIsStops) {
  Slots five(5);
  EXPECT_DEATH(table.take(five), "taking 5 slots of 4");
  EXPECT_DEATH(table.evict(five), "evicting 5 slots of 0");
}

TEST(SlotTable, SlotsComeAndGo) {
  SlotTable table(12);
  table.add({4, 8});
  EXPECT_EQ(table.num_slots(), 4U);
  Slots slots(2);
  table.take(slots);
  EXPECT_EQ(slots, (Slots{SlotId(4), SlotId(5)}));
  table.add({0, 4});
  table.add({8, 12});
  table.check_invariants();
  EXPECT_EQ(table.lists().longest_free(), SlotId(7));
  EXPECT_TRUE(table.any_named({4, 8}));
  EXPECT_FALSE(table.any_named({0, 4}));

  table.free(slots, SlotState::kWritable);
  table.remove({4, 8});
  table.check_invariants();
  EXPECT_EQ(table.state(SlotId(5)), SlotState::kAbsent);
  EXPECT_EQ(table.num_slots(), 8U);
  Slots rest(8);
  table.take(rest);
  EXPECT_EQ(rest.front(), SlotId(8));
  EXPECT_EQ(rest.back(), SlotId(3));
  table.check_invariants();
}

TEST(SlotTable, AgeCountsUsesSince) {
  SlotTable table(4, Segments::kTwo);
  table.add({0, 4});
  Slots slots(3);
  table.take(slots);
  table.commit(slots);
  EXPECT_EQ(table.lists().age(slots[2]), 0U);
  table.touch(slots[0]);
  table.touch(slots[0]);
  EXPECT_EQ(table.lists().age(slots[2]), 2U);
  EXPECT_EQ(table.lists().age(slots[0]), 0U);
  EXPECT_EQ(table.lists().coldest_of(Segment::kProbation), slots[2]);
  EXPECT_EQ(table.lists().hotter_than(slots[2]), slots[1]);
  EXPECT_EQ(table.lists().hotter_than(slots[1]), SlotLists::kNoSlot);
  EXPECT_EQ(table.lists().coldest_of(Segment::kProtected), slots[0]);
  table.await(slots[2], 1);
  EXPECT_EQ(table.lists().age(slots[2]), 0U);
  EXPECT_EQ(table.lists().coldest_of(Segment::kProbation), slots[1]);
}

TEST_F(SlotTableDeathTest, OnlyFreeSlotsGoAndOnlyAbsentOnesCome) {
  SlotTable part(8);
  part.add({0, 4});
  Slots slots(1);
  part.take(slots);
  EXPECT_DEATH(part.remove({0, 4}), "slot 0 is writable, not free");
  EXPECT_DEATH(part.add({3, 5}), "slot 3 is free, not absent");
  EXPECT_DEATH(part.add({4, 9}), "slots after the last one");
  EXPECT_DEATH(part.free(std::vector{SlotId(5)}, SlotState::kWritable),
               "slot 5 is absent, not writable");
}

TEST_F(SlotTableDeathTest, SlotBeyondTheUsableOnesStops) {
  SlotTable larger(10);
  larger.add({0, 10});
  Slots slots(10);
  larger.take(slots);
  EXPECT_DEATH(table.commit(std::span(slots).last(1)), "slot 9 of 4");
}

TEST(SlotState, HasANameEach) {
  EXPECT_EQ(std::string(to_string(SlotState::kFree)), "free");
  EXPECT_EQ(std::string(to_string(SlotState::kQuarantined)), "quarantined");
}

}  // namespace
}  // namespace kvferry::cpu_tier
