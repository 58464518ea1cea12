// SPDX-License-Identifier: Apache-2.0
// Blocks that stay because they are promised, and blocks that leave early.
#include "kvferry/cpu_tier/policy/promise_ledger.hpp"

#include "tier_fixture.hpp"

namespace kvferry::cpu_tier {
namespace {

using Numbers = std::vector<std::uint64_t>;

constexpr TierOptions kAgingLru{Eviction::kLru, Admission::kAlways, 0.25F, 1.0F};

class TierPromise : public TierFixture {
 protected:
  explicit TierPromise(const TierOptions& options = kAgingLru) : TierFixture(8, options) {}

  /// As many hits as this are on the account.
  void earn(std::size_t count) {
    const std::vector<BlockKey> asked = keys(1'000'000, PromiseLedger::kAskedPerCredit);
    std::vector<OfferAnswer> answers(asked.size());
    for (std::size_t i = 0; i < count; ++i) tier.offer(asked, answers);
  }
  void ask(std::span<const BlockKey> wanted) {
    std::vector<OfferAnswer> answers(wanted.size());
    tier.offer(wanted, answers);
  }
  /// 10 leaves before 0, which is promised; 11 and 12, which come after 10, stay.
  void lose_a_head() {
    earn(2);
    store(keys(0, 1));
    store(keys(10, 1));
    store(keys(11, 2));
    tier.promise(keys(0, 1));
    store(keys(20, 4));
    store(keys(30, 1));
  }
};

TEST_F(TierPromise, APromisedPrefixStaysWhenItsTurnComes) {
  earn(3);
  store(keys(0, 3));
  tier.promise(keys(0, 3));
  store(keys(10, 5));
  store(keys(20, 5));
  EXPECT_EQ(readable(0, 3), (Numbers{0, 1, 2}));
  EXPECT_TRUE(readable(10, 5).empty());
  EXPECT_EQ(tier.snapshot().num_stays, 3U);
}

TEST_F(TierPromise, WithoutCreditAPromiseChangesNothing) {
  store(keys(0, 3));
  tier.promise(keys(0, 3));
  store(keys(10, 5));
  store(keys(20, 3));
  EXPECT_TRUE(readable(0, 3).empty());
  EXPECT_EQ(tier.snapshot().num_stays, 0U);
}

TEST_F(TierPromise, HeadsOfSeveralPrefixesStayIfThereIsNotCreditForAll) {
  earn(2);
  store(keys(0, 4));
  store(keys(10, 4));
  tier.promise(keys(0, 4));
  tier.promise(keys(10, 4));
  store(keys(20, 6));
  EXPECT_EQ(readable(0, 4), (Numbers{0}));
  EXPECT_EQ(readable(10, 4), (Numbers{10}));
}

TEST_F(TierPromise, AReservationNeverFailsForPromises) {
  earn(8);
  store(keys(0, 8));
  tier.promise(keys(0, 8));
  store(keys(10, 8));
  EXPECT_EQ(readable(10, 8).size(), 8U);
  EXPECT_TRUE(readable(0, 8).empty());
}

TEST_F(TierPromise, WhatIsPromisedBeforeItIsStoredStaysToo) {
  earn(2);
  tier.promise(keys(0, 2));
  store(keys(0, 2));
  store(keys(10, 6));
  store(keys(20, 6));
  EXPECT_EQ(readable(0, 2), (Numbers{0, 1}));
}

TEST_F(TierPromise, WhatStaysLeavesFirstWhenItsPromiseEnds) {
  earn(2);
  store(keys(0, 2));
  tier.promise(keys(0, 2));
  tier.promise(keys(0, 2));
  store(keys(10, 6));
  store(keys(20, 6));
  tier.end_promise(keys(0, 2));
  store(keys(30, 1));
  EXPECT_EQ(readable(0, 2), (Numbers{0, 1})) << "another promise is left";
  tier.end_promise(keys(0, 2));
  store(keys(40, 2));
  EXPECT_TRUE(readable(0, 2).empty());
  EXPECT_EQ(readable(20, 6).size(), 5U);
}

TEST_F(TierPromise, ALoadOfWhatStayedIsWonFromItsFirstStayOn) {
  earn(2);
  store(keys(0, 3));
  tier.promise(keys(1, 1));
  store(keys(10, 5));
  store(keys(20, 3));
  EXPECT_EQ(readable(0, 3), (Numbers{1}));
  tier.release(lease(keys(1, 1)));
  EXPECT_EQ(tier.snapshot().num_won_total, 1U);
  tier.release(lease(keys(1, 1)));
  EXPECT_EQ(tier.snapshot().num_won_total, 1U) << "it is as any other block now";
}

TEST_F(TierPromise, WhatWouldStillBeThereWithoutStaysIsNotWon) {
  earn(2);
  store(keys(0, 2));
  tier.promise(keys(0, 2));
  store(keys(10, 6));
  store(keys(20, 1));
  // Both had their turn, and without promises the first of them would be there.
  EXPECT_EQ(tier.snapshot().num_stays, 2U);
  tier.release(lease(keys(0, 1)));
  EXPECT_EQ(tier.snapshot().num_won_total, 0U);
}

TEST_F(TierPromise, ABlockThatLeftForAnotherAndIsAskedForIsLost) {
  earn(2);
  store(keys(0, 1));
  tier.promise(keys(0, 1));
  store(keys(10, 7));
  store(keys(20, 1));
  EXPECT_EQ(readable(10, 7), (Numbers{10, 11, 12, 13, 14, 15}));
  ask(keys(10, 7));
  EXPECT_EQ(tier.snapshot().num_lost_total, 1U);
}

TEST_F(TierPromise, ALostHeadCostsWhatTheTierHoldsAfterIt) {
  lose_a_head();
  EXPECT_EQ(readable(0, 1), (Numbers{0}));
  EXPECT_EQ(readable(10, 3), (Numbers{11, 12}));
  ask(keys(10, 3));
  EXPECT_EQ(tier.snapshot().num_lost_total, 3U);
}

TEST_F(TierPromise, NothingIsLostAfterABlockThatWouldBeMissingAnyway) {
  lose_a_head();
  ask(keys(9, 4));
  EXPECT_EQ(tier.snapshot().num_lost_total, 0U);
}

TEST_F(TierPromise, AnAwaitedBlockThatStayedIsWonWhenItIsLoaded) {
  earn(2);
  store(keys(0, 1));
  tier.promise(keys(0, 1));
  store(keys(10, 7));
  store(keys(20, 7));
  tier.await(keys(0, 1));
  tier.check_invariants();
  tier.release(lease(keys(0, 1)));
  EXPECT_EQ(tier.snapshot().num_won_total, 1U);
}

TEST_F(TierPromise, WhatIsDemotedLeavesBeforeAllOthersFromItsTail) {
  earn(3);
  store(keys(10, 4));
  store(keys(0, 4));
  EXPECT_EQ(tier.leave_early(keys(0, 4)), 3U) << "as many as there is credit for";
  store(keys(20, 2));
  EXPECT_EQ(readable(0, 4), (Numbers{0, 1}));
  EXPECT_EQ(readable(10, 4).size(), 4U);
  EXPECT_EQ(tier.snapshot().num_early_total, 2U);
}

TEST_F(TierPromise, ADemotedBlockThatIsUsedLeavesInItsTurn) {
  earn(3);
  store(keys(0, 4));
  store(keys(10, 4));
  EXPECT_EQ(tier.leave_early(keys(10, 2)), 2U);
  tier.touch(keys(10, 1));
  tier.promise(keys(11, 1));
  store(keys(20, 2));
  EXPECT_EQ(readable(10, 4).size(), 4U);
  EXPECT_EQ(tier.snapshot().num_early_total, 0U);
}

TEST_F(TierPromise, NothingThatIsPromisedLeasedOrAwaitedIsDemoted) {
  earn(8);
  store(keys(0, 3));
  tier.promise(keys(0, 1));
  tier.await(keys(1, 1));
  Lease leased = lease(keys(2, 1));
  EXPECT_EQ(tier.leave_early(keys(0, 3)), 0U);
  tier.release(std::move(leased));
}

/// Nothing is known of what stays would cost by these rules.
class TierPromiseWithoutLru : public TierPromise {
 protected:
  TierPromiseWithoutLru() : TierPromise({Eviction::kArc, Admission::kAlways, 0.25F, 1.0F}) {}
};

TEST_F(TierPromiseWithoutLru, PromisesAreNotBelieved) {
  earn(8);
  store(keys(0, 3));
  tier.promise(keys(0, 3));
  EXPECT_EQ(tier.leave_early(keys(0, 3)), 0U);
  store(keys(10, 8));
  EXPECT_TRUE(readable(0, 3).empty());
}

}  // namespace
}  // namespace kvferry::cpu_tier
