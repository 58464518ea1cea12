// SPDX-License-Identifier: Apache-2.0
#include "kvferry/base/own_descriptor.hpp"

#include "kvferry/base/error.hpp"

#include <gtest/gtest.h>

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>
#include <vector>

namespace kvferry {
namespace {

int open_something() { return ::open("/dev/null", O_RDONLY | O_CLOEXEC); }
bool is_open(int descriptor) { return ::fcntl(descriptor, F_GETFD) >= 0; }

TEST(OwnDescriptorTest, ClosesWhatItHas) {
  int number = -1;
  {
    const OwnDescriptor own(open_something());
    number = own.get();
    EXPECT_TRUE(is_open(number));
  }
  EXPECT_FALSE(is_open(number));
}

TEST(OwnDescriptorTest, AMovedOneHasNothing) {
  OwnDescriptor first(open_something());
  const int number = first.get();
  OwnDescriptor second(std::move(first));
  EXPECT_EQ(second.get(), number);
  OwnDescriptor third;
  EXPECT_FALSE(third);
  third = std::move(second);
  EXPECT_EQ(third.get(), number);
  EXPECT_TRUE(is_open(number));
}

TEST(OwnDescriptorTest, AFailedOpenIsNone) {
  EXPECT_FALSE(OwnDescriptor(-1));
  EXPECT_EQ(OwnDescriptor(-1).get(), -1);
}

TEST(OwnDescriptorTest, AForkedChildDoesNotHaveIt) {
  const OwnDescriptor own(open_something());
  const pid_t child = ::fork();
  if (child == 0) {
    const bool gone = !own && !is_open(own.get());
    // The number may be the child's own by now, which the destructor has to leave alone.
    const int reused = open_something();
    { const OwnDescriptor of_child(open_something()); }
    ::_exit(gone && is_open(reused) ? 0 : 1);
  }
  ASSERT_GT(child, 0);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(is_open(own.get()));
}

TEST(OwnDescriptorTest, TooManyAreAnErrorThatLeavesNoneOpen) {
  std::vector<OwnDescriptor> all;
  int last = -1;
  try {
    for (std::uint32_t i = 0; i <= OwnDescriptor::kMost; ++i) {
      last = open_something();
      ASSERT_GE(last, 0) << "the process may open too few files";
      all.emplace_back(last);
    }
    ADD_FAILURE() << "no error";
  } catch (const ResourceError&) {
    EXPECT_FALSE(is_open(last));
  }
}

}  // namespace
}  // namespace kvferry
