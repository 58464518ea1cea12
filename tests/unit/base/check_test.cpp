// SPDX-License-Identifier: Apache-2.0
#include "kvferry/base/check.hpp"

#include <gtest/gtest.h>

#include <string>

namespace kvferry {
namespace {

TEST(Check, DoesNotMakeTheMessageWhenTheConditionHolds) {
  int num_made = 0;
  const auto message = [&] {
    ++num_made;
    return std::string("state");
  };
  KVFERRY_CHECK(num_made == 0, message());
  EXPECT_EQ(num_made, 0);
}

TEST(CheckDeathTest, DumpsConditionAndStateWhenTheConditionIsBroken) {
  EXPECT_DEATH(KVFERRY_CHECK(1 + 1 == 3, "state " + std::to_string(42)),
               "check_test.cpp:.*1 \\+ 1 == 3: state 42");
}

}  // namespace
}  // namespace kvferry
