// SPDX-License-Identifier: Apache-2.0
#include "kvferry/base/deadline.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

namespace kvferry {
namespace {

using std::chrono::nanoseconds;

TEST(Deadline, HasPassedAtOnceForABoundOfZeroOrLess) {
  EXPECT_TRUE(Deadline(nanoseconds::zero()).passed());
  EXPECT_TRUE(Deadline(nanoseconds::min()).passed());
  EXPECT_EQ(Deadline(nanoseconds::min()).remaining(), nanoseconds::zero());
}

TEST(Deadline, TakesTheLongestBoundWithoutOverflow) {
  const Deadline deadline(nanoseconds::max());
  EXPECT_FALSE(deadline.passed());
  EXPECT_GT(deadline.remaining(), Deadline::kLongest / 2);
}

TEST(Deadline, PassesOnceItsBoundIsOver) {
  const Deadline deadline(std::chrono::milliseconds(1));
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  EXPECT_TRUE(deadline.passed());
}

}  // namespace
}  // namespace kvferry
