// SPDX-License-Identifier: Apache-2.0
#include "kvferry/base/test_hooks.hpp"

#include <gtest/gtest.h>

#ifdef KVFERRY_TEST_HOOKS

#include <string>
#include <vector>

namespace kvferry {
namespace {

class TestHooks : public testing::Test {
 protected:
  void SetUp() override { test_hooks::reset(); }
  void TearDown() override { test_hooks::reset(); }
};

TEST_F(TestHooks, PassagesDoNothingUntilAsked) {
  KVFERRY_PAUSE_POINT("a");
  EXPECT_FALSE(KVFERRY_FAULT_POINT("a"));
}

TEST_F(TestHooks, FailsOnlyTheNthPassageOfAnyPoint) {
  test_hooks::fail_nth(3);
  EXPECT_FALSE(KVFERRY_FAULT_POINT("a"));
  EXPECT_FALSE(KVFERRY_FAULT_POINT("b"));
  EXPECT_TRUE(KVFERRY_FAULT_POINT("a"));
  EXPECT_FALSE(KVFERRY_FAULT_POINT("a"));
}

TEST_F(TestHooks, FailNthOfZeroFailsNone) {
  test_hooks::fail_nth(1);
  test_hooks::fail_nth(0);
  EXPECT_FALSE(KVFERRY_FAULT_POINT("a"));
}

TEST_F(TestHooks, FailsOnlyTheNthPassageOfTheNamedPoint) {
  test_hooks::fail_nth_of("b", 2);
  EXPECT_FALSE(KVFERRY_FAULT_POINT("a"));
  EXPECT_FALSE(KVFERRY_FAULT_POINT("b"));
  EXPECT_FALSE(KVFERRY_FAULT_POINT("a"));
  EXPECT_TRUE(KVFERRY_FAULT_POINT("b"));
  EXPECT_FALSE(KVFERRY_FAULT_POINT("b"));
}

TEST_F(TestHooks, NamedFaultIsTakenBackByZero) {
  test_hooks::fail_nth_of("b", 1);
  test_hooks::fail_nth_of("b", 0);
  EXPECT_FALSE(KVFERRY_FAULT_POINT("b"));
}

TEST_F(TestHooks, CountsPassagesAndListsNamesInOrderOfFirstPassage) {
  for (const char* name : {"b", "a", "b"}) EXPECT_FALSE(KVFERRY_FAULT_POINT(name));
  EXPECT_EQ(test_hooks::num_fault_passages(), 3U);
  EXPECT_EQ(test_hooks::fault_names(), (std::vector<std::string>{"b", "a"}));
}

TEST_F(TestHooks, CountsThePassagesThatFailed) {
  test_hooks::fail_nth(2);
  test_hooks::fail_nth_of("c", 1);
  for (const char* name : {"a", "b", "a", "c", "c"}) static_cast<void>(KVFERRY_FAULT_POINT(name));
  EXPECT_EQ(test_hooks::num_faults(), 2U);
}

TEST_F(TestHooks, RunsTheCallbackOfThePausePointOnly) {
  int num_calls = 0;
  test_hooks::on_pause("a", [&] { ++num_calls; });
  KVFERRY_PAUSE_POINT("a");
  KVFERRY_PAUSE_POINT("b");
  KVFERRY_PAUSE_POINT("a");
  EXPECT_EQ(num_calls, 2);
  test_hooks::on_pause("a", {});
  KVFERRY_PAUSE_POINT("a");
  EXPECT_EQ(num_calls, 2);
}

TEST_F(TestHooks, CallbackMayUseTheHooksItself) {
  test_hooks::on_pause("a", [] { test_hooks::fail_nth_of("b", 1); });
  KVFERRY_PAUSE_POINT("a");
  EXPECT_TRUE(KVFERRY_FAULT_POINT("b"));
}

TEST_F(TestHooks, ResetForgetsFaultsCallbacksAndCounts) {
  int num_calls = 0;
  test_hooks::on_pause("a", [&] { ++num_calls; });
  test_hooks::fail_nth_of("a", 2);
  test_hooks::fail_nth(2);
  EXPECT_FALSE(KVFERRY_FAULT_POINT("a"));
  test_hooks::reset();
  EXPECT_EQ(test_hooks::num_fault_passages(), 0U);
  EXPECT_EQ(test_hooks::num_faults(), 0U);
  EXPECT_TRUE(test_hooks::fault_names().empty());
  KVFERRY_PAUSE_POINT("a");
  EXPECT_EQ(num_calls, 0);
  EXPECT_FALSE(KVFERRY_FAULT_POINT("a"));
}

}  // namespace
}  // namespace kvferry

#else

namespace kvferry {
namespace {

constexpr bool kFaultPointIsAConstant = KVFERRY_FAULT_POINT("a");

TEST(TestHooks, AreConstantsWhenCompiledOut) { EXPECT_FALSE(kFaultPointIsAConstant); }

}  // namespace
}  // namespace kvferry

#endif
