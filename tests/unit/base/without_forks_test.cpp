// SPDX-License-Identifier: Apache-2.0
#include "kvferry/base/without_forks.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

namespace kvferry {
namespace {

using namespace std::chrono_literals;

int status_of(pid_t child) {
  int status = -1;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return status;
}

TEST(WithoutForksTest, AnotherThreadsForkComesBehindTheSection) {
  std::atomic<bool> is_inside{false};
  std::atomic<bool> was_inside{true};
  std::atomic<bool> begins{false};
  std::thread forks([&] {
    while (!is_inside) std::this_thread::yield();
    begins = true;
    const pid_t child = ::fork();
    // What the child sees is what was there when it was forked.
    if (child == 0) ::_exit(is_inside ? 1 : 0);
    was_inside = status_of(child) != 0;
  });
  {
    const WithoutForks section;
    is_inside = true;
    while (!begins) std::this_thread::yield();
    std::this_thread::sleep_for(20ms);
    is_inside = false;
  }
  forks.join();
  EXPECT_FALSE(was_inside);
}

TEST(WithoutForksTest, SectionsNestAndTheirOwnThreadMayForkInThem) {
  const WithoutForks outer;
  {
    const WithoutForks inner;
    const pid_t child = ::fork();
    if (child == 0) {
      // It is in them, too, and gets out of them.
      const WithoutForks again;
      ::_exit(0);
    }
    EXPECT_EQ(status_of(child), 0);
  }
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  EXPECT_EQ(status_of(child), 0);
}

TEST(WithoutForksTest, AChildHasSectionsOfItsOwn) {
  { const WithoutForks before; }
  const pid_t child = ::fork();
  if (child == 0) {
    { const WithoutForks section; }
    const pid_t grandchild = ::fork();
    if (grandchild == 0) ::_exit(0);
    ::_exit(status_of(grandchild));
  }
  EXPECT_EQ(status_of(child), 0);
}

std::atomic<int> num_handled{0};

TEST(WithoutForksTest, SignalsOfItsThreadWait) {
  struct sigaction before {};
  struct sigaction counts {};
  counts.sa_handler = [](int) { ++num_handled; };
  ASSERT_EQ(::sigaction(SIGUSR1, &counts, &before), 0);
  {
    const WithoutForks section;
    ::pthread_kill(::pthread_self(), SIGUSR1);
    EXPECT_EQ(num_handled, 0);
  }
  EXPECT_EQ(num_handled, 1);
  ::sigaction(SIGUSR1, &before, nullptr);
}

}  // namespace
}  // namespace kvferry
