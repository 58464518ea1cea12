// SPDX-License-Identifier: Apache-2.0
#include "kvferry/base/strong_id.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <type_traits>
#include <unordered_set>
#include <utility>

namespace kvferry {
namespace {

using AppleId = StrongId<struct AppleTag, std::uint16_t>;
using PearId = StrongId<struct PearTag, std::uint16_t>;

template <class A, class B>
concept Comparable = requires(A a, B b) {
  a == b;
};
template <class A>
concept Addable = requires(A a) {
  a + a;
};

static_assert(!std::is_convertible_v<std::uint16_t, AppleId>, "made only explicitly");
static_assert(!std::is_convertible_v<AppleId, std::uint16_t>, "never decays to an integer");
static_assert(!std::is_constructible_v<PearId, AppleId>, "kinds do not convert");
static_assert(!Comparable<AppleId, PearId> && !Comparable<AppleId, int>, "kinds do not compare");
static_assert(!Addable<AppleId>, "ids do not add up");
static_assert(sizeof(AppleId) == sizeof(std::uint16_t) && std::is_trivially_copyable_v<AppleId>);

TEST(StrongId, IsZeroWhenDefaultMade) { EXPECT_EQ(AppleId().value(), 0); }

TEST(StrongId, ComparesByValue) {
  EXPECT_EQ(AppleId(3), AppleId(3));
  EXPECT_NE(AppleId(3), AppleId(4));
  EXPECT_LT(AppleId(3), AppleId(4));
}

TEST(StrongId, NextCountsUpAndWrapsWithItsRep) {
  EXPECT_EQ(AppleId(3).next(), AppleId(4));
  EXPECT_EQ(AppleId(std::numeric_limits<std::uint16_t>::max()).next(), AppleId(0));
}

TEST(StrongId, IsAKeyOfHashedContainers) {
  const std::unordered_set<AppleId> apples = {AppleId(1), AppleId(2), AppleId(1)};
  EXPECT_EQ(apples.size(), 2U);
  EXPECT_TRUE(apples.contains(AppleId(2)));
  EXPECT_FALSE(apples.contains(AppleId(3)));
}

}  // namespace
}  // namespace kvferry
