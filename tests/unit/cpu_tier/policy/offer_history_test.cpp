// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/policy/offer_history.hpp"

#include "kvferry/cpu_tier/policy/policy_rule.hpp"

#include "tier_fixture.hpp"

#include <gtest/gtest.h>

namespace kvferry::cpu_tier {
namespace {

TEST(OfferHistory, CountsOffersUpToTheGreatestHeat) {
  OfferHistory history(100);
  EXPECT_EQ(history.num_offers(hash(1)), 0U);
  for (std::uint32_t times = 1; times <= 20; ++times) {
    EXPECT_EQ(history.count_offer(hash(1)), std::min(times, kMaxHeat));
  }
  EXPECT_EQ(history.num_offers(hash(1)), kMaxHeat);
  EXPECT_EQ(history.num_offers(hash(2)), 0U);
}

TEST(OfferHistory, RemembersTheLatestAndForgetsWhatIsOldest) {
  constexpr std::uint64_t kEntries = 3'000;
  OfferHistory history(kEntries);
  for (std::uint64_t i = 0; i < 10 * kEntries; ++i) history.count_offer(hash(i));
  const auto remembered = [&](std::uint64_t first, std::uint64_t count) {
    double sum = 0;
    for (std::uint64_t i = first; i < first + count; ++i) sum += history.num_offers(hash(i)) != 0;
    return sum / static_cast<double>(count);
  };
  // Buckets fill unevenly; between the two the memory fades.
  EXPECT_GT(remembered(10 * kEntries - kEntries / 3, kEntries / 3), 0.99);
  EXPECT_LT(remembered(0, 5 * kEntries), 0.001);
}

TEST(OfferHistory, ClearForgetsAll) {
  OfferHistory history(10);
  history.count_offer(hash(1));
  history.clear();
  EXPECT_EQ(history.num_offers(hash(1)), 0U);
}

TEST(OfferHistory, HashWithoutBitsToTellItByIsAHashLikeOthers) {
  OfferHistory history(10);
  EXPECT_EQ(history.num_offers(0), 0U);
  EXPECT_EQ(history.count_offer(0), 1U);
  EXPECT_EQ(history.count_offer(0), 2U);
}

TEST(OfferHistory, CostsBelowFiveBytesPerBlockRemembered) {
  EXPECT_LT(OfferHistory(1'000'000).size_bytes(), 4'400'000U);
}

}  // namespace
}  // namespace kvferry::cpu_tier
