// SPDX-License-Identifier: Apache-2.0
#include "kvferry/base/error.hpp"

#include "tier_fixture.hpp"

#include <limits>
#include <string>

namespace kvferry::cpu_tier {
namespace {

using Answers = std::vector<OfferAnswer>;
constexpr auto kHeld = OfferAnswer::kHeld;
constexpr auto kStore = OfferAnswer::kStore;
constexpr auto kDeclined = OfferAnswer::kDeclined;

constexpr TierOptions kLru{Eviction::kLru, Admission::kAlways};
constexpr TierOptions kSecondOffer{Eviction::kLru, Admission::kSecondOffer};

/// A tier of eight slots.
class TierOffer : public TierFixture {
 protected:
  explicit TierOffer(const TierOptions& options = kSecondOffer) : TierFixture(8, options) {}

  Answers offer(std::span<const BlockKey> wanted) {
    Answers answers(wanted.size());
    tier.offer(wanted, answers);
    return answers;
  }
  /// As a connector does: what is admitted is stored.
  void serve(std::span<const BlockKey> wanted) {
    const Answers answers = offer(wanted);
    std::vector<BlockKey> admitted;
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      if (answers[i] == kStore) admitted.push_back(wanted[i]);
    }
    if (!admitted.empty()) store(admitted);
  }
};

TEST_F(TierOffer, EverythingIsStoredWhileThereAreFreeSlots) {
  EXPECT_EQ(offer(keys(0, 6)), Answers(6, kStore));
  store(keys(0, 6));
  EXPECT_EQ(offer(keys(10, 4)), (Answers{kStore, kStore, kDeclined, kDeclined}));
}

TEST(TierOfferEarly, TierThatHasNotGrownYetAdmitsAll) {
  PlainTier tier(8, kSecondOffer);
  Answers answers(3);
  tier.offer(keys(0, 3), answers);
  EXPECT_EQ(answers, Answers(3, kStore));
}

TEST_F(TierOffer, FullTierStoresOnTheSecondOffer) {
  store(keys(0, 8));
  EXPECT_EQ(offer(keys(10, 3)), Answers(3, kDeclined));
  EXPECT_EQ(offer(keys(10, 3)), Answers(3, kStore));
  const TierSnapshot now = tier.snapshot();
  EXPECT_EQ(now.num_offered_total, 6U);
  EXPECT_EQ(now.num_declined_total, 3U);
  EXPECT_EQ(now.num_evicted_total, 0U);  // An offer takes nothing.
}

TEST_F(TierOffer, BlockOfferedBeforeProvesThoseInFrontOfIt) {
  store(keys(0, 8));
  offer(keys(11, 2));  // Of a prefix 10, 11, 12, 13 whose head has been forgotten.
  EXPECT_EQ(offer(keys(10, 4)), (Answers{kStore, kStore, kStore, kDeclined}));
}

TEST_F(TierOffer, HeldBlocksAreSaidToBeAndTouched) {
  store(keys(0, 4));
  store(keys(10, 4));
  EXPECT_EQ(offer(keys(0, 4)), Answers(4, kHeld));
  offer(keys(20, 4));
  serve(keys(20, 4));
  EXPECT_EQ(readable(0, 4).size(), 4U);
  EXPECT_TRUE(readable(10, 4).empty());
}

TEST_F(TierOffer, BlockThatIsBeingStoredIsHeld) {
  WritableSlots writable = take(keys(0, 2));
  EXPECT_EQ(offer(keys(0, 3)), (Answers{kHeld, kHeld, kStore}));
  tier.commit(std::move(writable));
}

TEST_F(TierOffer, LookupsAreNotOffers) {  // vllm#52227
  store(keys(0, 8));
  for (int i = 0; i < 5; ++i) static_cast<void>(tier.lookup_prefix(keys(10, 3)));
  EXPECT_EQ(offer(keys(10, 3)), Answers(3, kDeclined));
}

TEST_F(TierOffer, SecondOfferIsProtectedFromOneTimers) {
  store(keys(0, 8));
  offer(keys(10, 2));
  serve(keys(10, 2));
  offer(keys(30, 6));
  serve(keys(30, 6));
  EXPECT_EQ(readable(10, 2).size(), 2U);  // Those of the first fill left.
  EXPECT_EQ(readable(30, 6).size(), 6U);
}

class TierOfferLru : public TierOffer {
 protected:
  TierOfferLru() : TierOffer(kLru) {}
};

TEST_F(TierOfferLru, EverythingIsStored) {
  store(keys(0, 8));
  EXPECT_EQ(offer(keys(10, 3)), Answers(3, kStore));
  EXPECT_STREQ(tier.rule_name(), "lru");
}

TEST_F(TierOfferLru, AwaitedBlocksLeaveLast) {
  store(keys(0, 2));
  store(keys(10, 6));
  tier.await(keys(0, 2));
  EXPECT_EQ(tier.snapshot().num_awaited, 2U);
  store(keys(20, 6));
  EXPECT_EQ(readable(0, 2).size(), 2U);
  EXPECT_TRUE(readable(10, 6).empty());
}

TEST_F(TierOfferLru, BlocksOfAHitAreAwaitedAsLongAsItHolds) {
  store(keys(0, 2));
  const PrefixHit hit = tier.lookup_prefix(keys(0, 4));
  tier.await(hit);
  EXPECT_EQ(tier.snapshot().num_awaited, 2U);
  tier.end_await(keys(0, 2));
  forget(keys(1, 1));
  tier.await(hit);
  EXPECT_EQ(tier.snapshot().num_awaited, 0U);
}

TEST_F(TierOfferLru, AwaitedBlocksNeverMakeAReservationFail) {
  store(keys(0, 8));
  tier.await(keys(0, 8));
  store(keys(10, 8));
  EXPECT_TRUE(readable(0, 8).empty());
}

TEST_F(TierOfferLru, NoMoreThanTheirShareIsKeptAndItIsTheHead) {
  store(keys(0, 8));
  tier.await(keys(0, 4));  // A quarter of eight slots.
  EXPECT_EQ(tier.snapshot().num_awaited, 2U);
  store(keys(10, 6));
  EXPECT_EQ(readable(0, 8), (std::vector<std::uint64_t>{0, 1}));
}

TEST_F(TierOfferLru, WaitingEndsWithTheLeaseAndWithTheTouch) {
  store(keys(0, 2));
  tier.await(keys(0, 2));
  Lease held = lease(keys(0, 1));
  tier.touch(keys(1, 1));
  EXPECT_EQ(tier.snapshot().num_awaited, 0U);
  tier.await(keys(0, 1));  // A leased block needs no protection.
  EXPECT_EQ(tier.snapshot().num_awaited, 0U);
  tier.release(std::move(held));
}

TEST_F(TierOfferLru, WaitingEndsWithTheRequestThatWaits) {
  store(keys(0, 2));
  tier.await(keys(0, 2));
  tier.end_await(keys(0, 2));
  EXPECT_EQ(tier.snapshot().num_awaited, 0U);
  tier.end_await(keys(0, 2));  // Nobody waits: nothing.
  store(keys(10, 6));
  store(keys(20, 2));
  EXPECT_TRUE(readable(0, 2).empty());
}

TEST_F(TierOfferLru, BlocksThatAnotherRequestWaitsForStay) {
  store(keys(0, 2));
  tier.await(keys(0, 2));
  tier.await(keys(0, 1));
  tier.end_await(keys(0, 2));
  EXPECT_EQ(tier.snapshot().num_awaited, 1U);
  tier.end_await(keys(0, 1));
  EXPECT_EQ(tier.snapshot().num_awaited, 0U);
}

TEST_F(TierOfferLru, RequestThatNeverComesIsForgottenAfterATurnover) {
  store(keys(0, 2));
  store(keys(10, 6));
  tier.await(keys(0, 2));
  for (std::uint64_t i = 0; i < 8; ++i) store(keys(100 + i, 1));
  EXPECT_EQ(readable(0, 2).size(), 2U);
  EXPECT_EQ(tier.snapshot().num_awaited, 2U);
  for (std::uint64_t i = 8; i < 24; ++i) store(keys(100 + i, 1));
  EXPECT_EQ(tier.snapshot().num_awaited, 0U);
  EXPECT_TRUE(readable(0, 2).empty());
}

TEST_F(TierOfferLru, AwaitedBlockCanBeForgotten) {
  store(keys(0, 2));
  tier.await(keys(0, 2));
  tier.forget_all();
  EXPECT_EQ(tier.snapshot().num_awaited, 0U);
  EXPECT_EQ(tier.snapshot().num_free, 8U);
}

// Of three slots the first request takes all; what the second one adds would push out its own head.
TEST(TierOfferSmall, StoresNoMoreThanFitsAfterWhatIsHeld) {
  PlainTier tier(4, kLru);
  tier.grow_to(4);
  const auto offer = [&](std::span<const BlockKey> wanted) {
    Answers answers(wanted.size());
    tier.offer(wanted, answers);
    return answers;
  };
  const std::vector<BlockKey> prompt = keys(0, 6);
  EXPECT_EQ(offer(prompt), (Answers{kStore, kStore, kStore, kStore, kDeclined, kDeclined}));
  tier.commit(tier.reserve(std::span(prompt).first(3)).value().hand_over());
  EXPECT_EQ(offer(prompt), (Answers{kHeld, kHeld, kHeld, kStore, kDeclined, kDeclined}));
}

class TierOfferAdaptive : public TierOffer {
 protected:
  TierOfferAdaptive() : TierOffer(TierOptions{}) {}
};

TEST_F(TierOfferAdaptive, StopsStoringOneTimersAndStoresAgainWhenItWouldHit) {
  // That stores are saved counts little: it takes many.
  for (std::uint64_t i = 0; i < 600; ++i) serve(keys(1'000 + 2 * i, 2));
  const TierSnapshot before = tier.snapshot();
  for (std::uint64_t i = 600; i < 700; ++i) serve(keys(1'000 + 2 * i, 2));
  const TierSnapshot after = tier.snapshot();
  EXPECT_EQ(after.num_committed_total, before.num_committed_total);
  // Each block once more, three blocks later, and never again.
  for (std::uint64_t i = 10'000; i < 10'400; ++i) {
    serve(keys(i, 1));
    serve(keys(i - 3, 1));
  }
  EXPECT_GT(tier.snapshot().num_committed_total, after.num_committed_total + 100);
  EXPECT_GE(tier.snapshot().num_rule_switches_total, 2U);
}

TEST_F(TierOfferAdaptive, KeepsAPartOfALoopThatIsLargerThanTheTier) {
  std::uint64_t hits = 0;
  for (int round = 0; round < 60; ++round) {
    for (std::uint64_t i = 0; i < 10; ++i) {
      hits += readable(i, 1).size();
      serve(keys(i, 1));
    }
  }
  EXPECT_GT(hits, 300U);  // LRU: none.
}

TEST(TierOfferGrowing, TierThatGrowsInSmallPiecesLearnsMeanwhile) {
  PlainTier tier(400, {});
  tier.grow_to(100);
  for (std::uint32_t i = 0; i < 300; ++i) {  // Nothing but the first blocks ever comes back.
    Answers answers(8);
    tier.offer(keys(i % 2 == 0 ? 0 : 8 * i, 8), answers);
    tier.offer(keys(1'000'000 + 200 * i, 120), answers = Answers(120));
    tier.grow_to(100 + i);
  }
  EXPECT_GE(tier.snapshot().num_rule_switches_total, 1U);
}

TEST(TierOptions, ShareOutOfRangeIsRefused) {
  TierOptions options;
  options.max_awaited_share = 1.5F;
  EXPECT_THROW(PlainTier(8, options), ConfigError);
  options.max_awaited_share = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THROW(PlainTier(8, options), ConfigError);
}

TEST(TierOptions, HaveANameEach) {
  for (const EvictionRow& row : kEvictions) {
    EXPECT_EQ(eviction_from(row.name), row.eviction);
    EXPECT_STREQ(to_string(row.eviction), row.name);
  }
  for (const Admission one : {Admission::kAlways, Admission::kSecondOffer, Admission::kAdaptive}) {
    EXPECT_EQ(admission_from(to_string(one)), one);
  }
}

TEST(TierOptions, UnknownNameIsRefusedWithTheKnownOnes) {
  try {
    static_cast<void>(admission_from("second-offer"));
    FAIL() << "accepted";
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("adaptive, always, second_offer"), std::string::npos);
  }
  EXPECT_THROW(static_cast<void>(eviction_from("fifo")), ConfigError);
}

}  // namespace
}  // namespace kvferry::cpu_tier
