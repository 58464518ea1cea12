// SPDX-License-Identifier: Apache-2.0
// Reserve, commit, abort, quarantine.
#include "kvferry/cpu_tier/slots/tier.hpp"

#include "tier_fixture.hpp"

#include <array>
#include <optional>
#include <type_traits>
#include <utility>

namespace kvferry::cpu_tier {
namespace {

using Ids = std::vector<std::uint32_t>;

class TierStore : public TierFixture {
 protected:
  TierStore() : TierFixture(8) {}
};
using TierStoreDeathTest = TierStore;

TEST_F(TierStore, FreshTierHandsOutAscendingSlots) {
  WritableSlots first = take(keys(0, 3));
  WritableSlots second = take(keys(10, 5));
  EXPECT_EQ(ids(first.slots()), (Ids{0, 1, 2}));
  EXPECT_EQ(ids(second.slots()), (Ids{3, 4, 5, 6, 7}));
  tier.commit(std::move(first));
  tier.commit(std::move(second));
}

TEST_F(TierStore, KeyIsWritableUntilCommitted) {
  WritableSlots slots = take(keys(0, 2));
  EXPECT_EQ(state(key(0)), KeyState::kWritable);
  EXPECT_EQ(tier.lookup_prefix(keys(0, 2)).size(), 0U);
  EXPECT_FALSE(tier.lease(keys(0, 2)).ok());
  tier.commit(std::move(slots));
  EXPECT_EQ(state(key(0)), KeyState::kReadable);
  EXPECT_EQ(tier.lookup_prefix(keys(0, 2)).size(), 2U);
}

// kvcached#364: a partial allocation rolls back exactly; kvcached#262: 76 needed, 71 there.
TEST_F(TierStore, ExhaustedLeavesEverythingAsItWas) {
  store(keys(0, 3));
  WritableSlots in_flight = take(keys(10, 4));
  const TierSnapshot before = tier.snapshot();
  const std::uint64_t epoch = tier.eviction_epoch();

  const auto result = tier.reserve(keys(20, 5));  // 1 free + 3 evictable.
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.otherwise().num_available, 4U);

  const TierSnapshot after = tier.snapshot();
  EXPECT_EQ(after.num_free, before.num_free);
  EXPECT_EQ(after.num_evictable, before.num_evictable);
  EXPECT_EQ(after.num_evicted_total, 0U);
  EXPECT_EQ(after.num_exhausted_total, before.num_exhausted_total + 1);
  EXPECT_EQ(tier.eviction_epoch(), epoch);
  EXPECT_EQ(readable(0, 3).size(), 3U);
  EXPECT_EQ(state(key(20)), KeyState::kAbsent);
  EXPECT_EQ(ids(in_flight.slots()), (Ids{3, 4, 5, 6}));
  tier.commit(std::move(in_flight));
}

TEST_F(TierStore, TakesFreeAndEvictableSlotsToTheLastOne) {
  store(keys(0, 3));
  WritableSlots in_flight = take(keys(10, 4));
  WritableSlots all = take(keys(20, 4));
  EXPECT_EQ(all.size(), 4U);
  EXPECT_TRUE(readable(0, 3).empty());
  EXPECT_EQ(tier.snapshot().num_evicted_total, 3U);
  EXPECT_EQ(tier.reserve(keys(30, 1)).otherwise().num_available, 0U);
  tier.commit(std::move(all));
  tier.commit(std::move(in_flight));
}

TEST_F(TierStore, EmptyReserveSucceedsInAFullTier) {
  WritableSlots all = take(keys(0, 8));
  EXPECT_TRUE(take({}).empty());
  tier.commit(std::move(all));
}

// Another thread may have been faster. Even where making room would evict the key itself, the tier
// stays as it was.
TEST_F(TierStore, AKeyThatIsPresentIsRefusedAndNothingChanges) {
  store(keys(0, 6));
  WritableSlots in_flight = take(keys(10, 2));
  const std::uint64_t epoch = tier.eviction_epoch();

  const std::vector<BlockKey> readable_last{key(20), key(21), key(5)};
  const auto readable_key = tier.reserve(readable_last);
  EXPECT_EQ(readable_key.otherwise().present, 2U);
  EXPECT_EQ(readable_key.otherwise().num_available, 3U);
  const std::vector<BlockKey> writable_first{key(11), key(20)};
  EXPECT_EQ(tier.reserve(writable_first).otherwise().present, 0U);
  EXPECT_EQ(tier.reserve(keys(5, 7)).otherwise().present, std::nullopt) << "no room goes first";

  EXPECT_EQ(tier.snapshot().num_evictable, 6U);
  EXPECT_EQ(tier.snapshot().num_writable, 2U);
  EXPECT_EQ(tier.snapshot().num_exhausted_total, 1U);
  EXPECT_EQ(tier.eviction_epoch(), epoch);
  EXPECT_EQ(state(key(20)), KeyState::kAbsent);
  tier.commit(std::move(in_flight));
}

TEST(TierReservation, AnEmptyOneMayOutliveItsTier) {
  std::optional<PlainTier> tier(std::in_place, 2);
  tier->grow_to(2);
  Reservation reservation = std::move(tier->reserve(keys(0, 1))).value();
  tier->commit(std::move(reservation).hand_over());
  tier.reset();
}

// FlexKV#236: cancelled, never-started work keeps its reservation and the pool becomes unreachable.
TEST_F(TierStore, DroppedReservationGivesEverythingBack) {
  for (int cancelled = 0; cancelled < 32; ++cancelled) {
    auto result = tier.reserve(keys(0, 8));
    ASSERT_TRUE(result.ok());
    EXPECT_EQ(ids(result.value().slots()), (Ids{0, 1, 2, 3, 4, 5, 6, 7}));
  }
  EXPECT_EQ(tier.snapshot().num_free, 8U);
  EXPECT_EQ(state(key(0)), KeyState::kAbsent);
}

TEST_F(TierStore, ReservationOverwrittenByAnotherGivesItsSlotsBack) {
  Reservation kept = std::move(tier.reserve(keys(0, 3))).value();
  kept = std::move(tier.reserve(keys(10, 2))).value();
  EXPECT_EQ(tier.snapshot().num_writable, 2U);
  EXPECT_EQ(state(key(0)), KeyState::kAbsent);
  EXPECT_EQ(state(key(10)), KeyState::kWritable);
}

TEST_F(TierStore, MovedReservationGivesBackOnce) {
  {
    Reservation first = std::move(tier.reserve(keys(0, 3))).value();
    const Reservation second = std::move(first);
    EXPECT_EQ(second.slots().size(), 3U);
  }
  EXPECT_EQ(tier.snapshot().num_free, 8U);
}

// LMCache#4991, #5032: what a failed store leaves behind is found and served.
TEST_F(TierStore, FailedStoreIsNeverFound) {
  const auto expect_hidden = [&] {
    EXPECT_EQ(state(key(0)), KeyState::kAbsent);
    EXPECT_EQ(tier.lookup_prefix(keys(0, 2)).size(), 0U);
    EXPECT_EQ(tier.lease(keys(0, 2)).otherwise().first, 0U);
  };
  WritableSlots written = take(keys(0, 2));
  EXPECT_EQ(tier.lookup_prefix(keys(0, 2)).size(), 0U) << "published before it failed";
  EXPECT_FALSE(tier.lease(keys(0, 2)).ok());
  AbortedSlots aborted = tier.abort(std::move(written));
  expect_hidden();
  QuarantinedSlots quarantined = tier.quarantine(aborted.split_off(1));
  expect_hidden();
  tier.release(std::move(aborted));
  tier.release(std::move(quarantined));
  expect_hidden();
}

// TensorRT-LLM#9056: two blocks are stored into one host slot.
TEST_F(TierStore, ASlotThatIsOutIsNotHandedOutAgain) {
  std::array<bool, 8> out{};
  std::vector<WritableSlots> sets;
  for (std::uint64_t first = 0; first < 8; first += 2) {
    sets.push_back(take(keys(first, 2)));
    for (const SlotId slot : sets.back().slots()) {
      EXPECT_FALSE(std::exchange(out.at(slot.value()), true)) << "slot " << slot.value();
    }
  }
  EXPECT_FALSE(tier.reserve(keys(100, 1)).ok());
  for (WritableSlots& set : sets) tier.commit(std::move(set));
}

TEST_F(TierStore, AbortedKeyCanBeReservedWhileItsOldSlotIsInDoubt) {
  WritableSlots first = take(keys(0, 2));
  AbortedSlots aborted = tier.abort(std::move(first));
  EXPECT_EQ(state(key(0)), KeyState::kAbsent);

  WritableSlots second = take(keys(0, 2));
  EXPECT_EQ(ids(aborted.slots()), (Ids{0, 1}));
  EXPECT_EQ(ids(second.slots()), (Ids{2, 3}));
  tier.commit(std::move(second));
  tier.release(std::move(aborted));
  EXPECT_EQ(tier.lookup_prefix(keys(0, 2)).size(), 2U);
}

// TensorRT-LLM#15546: memory reused under a live copy.
TEST_F(TierStore, AbortedSlotIsNotReusedBeforeItsRelease) {
  AbortedSlots aborted = tier.abort(take(keys(0, 1)));
  store(keys(10, 7));
  store(keys(20, 7));  // The other seven once more.
  EXPECT_EQ(tier.reserve(keys(30, 8)).otherwise().num_available, 7U);
  tier.release(std::move(aborted));
  EXPECT_EQ(ids(tier.reserve(keys(30, 8)).value().slots()).size(), 8U);
}

TEST_F(TierStore, ReleasedSlotsAreTakenAgainInOrder) {
  tier.release(tier.abort(take(keys(0, 4))));
  EXPECT_EQ(ids(tier.reserve(keys(10, 4)).value().slots()), (Ids{0, 1, 2, 3}));
}

TEST_F(TierStore, PartOfASetCanBeCommittedAndTheRestAborted) {
  WritableSlots stored = take(keys(0, 4));
  WritableSlots failed = stored.split_off(3);
  tier.commit(std::move(stored));
  tier.release(tier.abort(std::move(failed)));
  EXPECT_EQ(tier.lookup_prefix(keys(0, 4)).size(), 3U);
  EXPECT_EQ(state(key(3)), KeyState::kAbsent);
}

TEST_F(TierStore, QuarantinedSlotIsUnusableUntilReleased) {
  QuarantinedSlots quarantined = tier.quarantine(tier.abort(take(keys(0, 3))));
  EXPECT_EQ(tier.snapshot().num_quarantined, 3U);
  EXPECT_EQ(tier.reserve(keys(10, 6)).otherwise().num_available, 5U);
  tier.release(std::move(quarantined));
  EXPECT_EQ(tier.snapshot().num_quarantined, 0U);
  EXPECT_EQ(tier.snapshot().num_free, 8U);
}

TEST_F(TierStore, CountsEveryReservationAndCommit) {
  store(keys(0, 3));
  tier.release(tier.abort(take(keys(10, 2))));
  EXPECT_EQ(tier.snapshot().num_reserved_total, 5U);
  EXPECT_EQ(tier.snapshot().num_committed_total, 3U);
}

TEST(TierGrow, SlotsBecomeUsableOnlyByGrowing) {
  PlainTier tier(4);
  EXPECT_EQ(tier.reserve(keys(0, 1)).otherwise().num_available, 0U);
  tier.grow_to(2);
  tier.grow_to(2);
  EXPECT_EQ(tier.snapshot().num_slots, 2U);
  EXPECT_FALSE(tier.reserve(keys(0, 3)).ok());
  tier.grow_to(4);
  EXPECT_TRUE(tier.reserve(keys(0, 4)).ok());
  tier.check_invariants();
}

TEST(TierGrow, RefusesMoreSlotsThanTheIndexCanName) {
  EXPECT_THROW(PlainTier(BlockIndex::kMaxSlots + 1), ConfigError);
}

TEST_F(TierStoreDeathTest, ReservingAKeyTwiceInOneCallStops) {
  const std::vector<BlockKey> twice{key(1), key(1)};
  EXPECT_DEATH({ auto result = tier.reserve(twice); }, "a key was inserted that slot 0 holds");
}

TEST_F(TierStoreDeathTest, SlotsOfAnotherTierStop) {
  PlainTier other(8);
  other.grow_to(8);
  WritableSlots slots = take(keys(0, 1));
  EXPECT_DEATH(other.commit(std::move(slots)), "slot 0 is free, not writable");
  tier.commit(std::move(slots));
}

TEST_F(TierStoreDeathTest, ShrinkingStops) { EXPECT_DEATH(tier.grow_to(7), "grow_to\\(7\\)"); }

TEST_F(TierStoreDeathTest, GrowingPastTheMaximumStops) {
  EXPECT_DEATH(tier.grow_to(9), "grow_to\\(9\\)");
}

TEST(TierDeathTest, DyingWithASetOutStops) {
  std::optional<PlainTier> tier(std::in_place, 2);
  tier->grow_to(2);
  WritableSlots slots = std::move(tier->reserve(keys(0, 1))).value().hand_over();
  EXPECT_DEATH(tier.reset(), "a tier is destroyed with 1 writable");
  tier->commit(std::move(slots));
}

}  // namespace
}  // namespace kvferry::cpu_tier
