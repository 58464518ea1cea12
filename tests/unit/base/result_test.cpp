// SPDX-License-Identifier: Apache-2.0
#include "kvferry/base/result.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <type_traits>
#include <utility>

namespace kvferry {
namespace {

struct Exhausted {
  int num_missing = 0;
};
using MoveOnlyResult = Result<std::unique_ptr<int>, Exhausted>;

static_assert(std::is_move_constructible_v<MoveOnlyResult>);
static_assert(!std::is_copy_constructible_v<MoveOnlyResult>);
static_assert(!std::is_convertible_v<MoveOnlyResult, bool>, "only tested, never counted");

MoveOnlyResult take(bool enough) {
  if (!enough) return Exhausted{3};
  return std::make_unique<int>(7);
}

TEST(Result, HoldsTheValue) {
  const auto result = take(true);
  ASSERT_TRUE(result.ok());
  EXPECT_TRUE(static_cast<bool>(result));
  EXPECT_EQ(*result.value(), 7);
}

TEST(Result, HoldsTheOtherOutcome) {
  const auto result = take(false);
  ASSERT_FALSE(result.ok());
  EXPECT_FALSE(static_cast<bool>(result));
  EXPECT_EQ(result.otherwise().num_missing, 3);
}

TEST(Result, GivesItsValueAway) {
  const std::unique_ptr<int> owned = take(true).value();
  EXPECT_EQ(*owned, 7);
}

TEST(Result, ChangesItsValueInPlace) {
  auto result = take(true);
  *result.value() = 8;
  EXPECT_EQ(*result.value(), 8);
}

TEST(Result, TellsValueAndOtherOutcomeApartWhenTheirTypesAreAlike) {
  const Result<int, Exhausted> zero(0);
  const Result<int, Exhausted> exhausted(Exhausted{});
  EXPECT_TRUE(zero.ok());
  EXPECT_FALSE(exhausted.ok());
}

TEST(ResultDeathTest, StopsWhenTheWrongSideIsLookedAt) {
  const auto value = take(true);
  const auto other = take(false);
  EXPECT_DEATH(std::ignore = other.value(), "broken invariant");
  EXPECT_DEATH(std::ignore = value.otherwise(), "broken invariant");
}

}  // namespace
}  // namespace kvferry
