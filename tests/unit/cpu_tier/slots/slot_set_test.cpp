// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/slots/slot_set.hpp"

#include "tier_fixture.hpp"

#include <concepts>
#include <type_traits>

namespace kvferry::cpu_tier {
namespace {

using Ids = std::vector<std::uint32_t>;

// What does not fit the state does not compile.
template <class Set>
concept Committable = requires(Tier& tier, Set set) {
  tier.commit(std::move(set));
};
static_assert(Committable<WritableSlots>);
static_assert(!Committable<AbortedSlots> && !Committable<QuarantinedSlots> && !Committable<Lease>);
template <class Set>
concept Releasable = requires(Tier& tier, Set set) {
  tier.release(std::move(set));
};
static_assert(!Releasable<WritableSlots>);
static_assert(!std::copyable<Lease> && !std::is_constructible_v<WritableSlots, AbortedSlots>);

class SlotSetTest : public TierFixture {
 protected:
  SlotSetTest() : TierFixture(6) {}
};
using SlotSetDeathTest = SlotSetTest;

TEST_F(SlotSetTest, SplitOffKeepsTheHeadAndReturnsTheTail) {
  WritableSlots head = take(keys(0, 5));
  WritableSlots tail = head.split_off(2);
  EXPECT_EQ(ids(head.slots()), (Ids{0, 1}));
  EXPECT_EQ(ids(tail.slots()), (Ids{2, 3, 4}));
  EXPECT_TRUE(tail.split_off(3).empty());
  head.merge(std::move(tail));
  EXPECT_EQ(ids(head.slots()), (Ids{0, 1, 2, 3, 4}));
  EXPECT_TRUE(tail.empty());  // NOLINT(bugprone-use-after-move): merge() leaves it empty.
  tier.commit(std::move(head));
}

TEST_F(SlotSetTest, MovingLeavesTheSourceEmpty) {
  WritableSlots first = take(keys(0, 2));
  WritableSlots second = std::move(first);
  EXPECT_TRUE(first.empty());  // NOLINT(bugprone-use-after-move)
  first = std::move(second);
  EXPECT_TRUE(second.empty());  // NOLINT(bugprone-use-after-move)
  EXPECT_EQ(first.size(), 2U);
  tier.commit(std::move(first));
}

TEST_F(SlotSetDeathTest, DroppingSlotsStops) {
  EXPECT_DEATH({ const WritableSlots dropped = take(keys(0, 2)); }, "2 slots were dropped");
}

TEST_F(SlotSetDeathTest, OverwritingSlotsStops) {
  WritableSlots held = take(keys(0, 2));
  EXPECT_DEATH(held = WritableSlots(), "a non-empty SlotSet was overwritten");
  tier.commit(std::move(held));
}

TEST_F(SlotSetDeathTest, SplittingBeyondTheEndStops) {
  WritableSlots held = take(keys(0, 2));
  EXPECT_DEATH({ auto tail = held.split_off(3); }, "split_off beyond the end");
  tier.commit(std::move(held));
}

}  // namespace
}  // namespace kvferry::cpu_tier
