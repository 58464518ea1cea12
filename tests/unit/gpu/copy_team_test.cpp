// SPDX-License-Identifier: Apache-2.0
#include "host/copy_team.hpp"

#include "kvferry/base/test_hooks.hpp"

#include "hang.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <set>
#include <sys/wait.h>
#include <thread>
#include <tuple>
#include <unistd.h>
#include <vector>

namespace kvferry::gpu {
namespace {

/// How often each part was called; plain numbers, so that TSan sees who wrote and who read.
std::vector<int> calls_of(CopyTeam& team, std::uint32_t num_parts) {
  std::vector<int> calls(num_parts);
  team.run(num_parts, [&](std::uint32_t i) { ++calls[i]; });
  return calls;
}

/// Waits until `num` threads are here at once; false if they do not come.
class Meeting {
 public:
  explicit Meeting(std::uint32_t num) : num_(num) {}
  bool attend() {
    ++num_here_;
    const auto begin = std::chrono::steady_clock::now();
    while (num_here_ < num_) {
      if (std::chrono::steady_clock::now() - begin > kHang) return false;
      std::this_thread::yield();
    }
    return true;
  }

 private:
  const std::uint32_t num_;
  std::atomic<std::uint32_t> num_here_ = 0;
};

TEST(CopyTeam, RunsEveryPartOnceWhateverTheNumberOfHelpers) {
  for (const std::uint32_t num_helpers : {0U, 1U, 3U}) {
    CopyTeam team(num_helpers);
    EXPECT_EQ(team.num_threads(), num_helpers + 1);
    for (const std::uint32_t num_parts : {0U, 1U, 2U, 3U, 64U, 1000U}) {
      ASSERT_EQ(calls_of(team, num_parts), std::vector<int>(num_parts, 1)) << num_helpers;
    }
  }
}

TEST(CopyTeam, HelpersAndTheCallerWorkAtOnce) {
  constexpr std::uint32_t kThreads = 3;
  CopyTeam team(kThreads - 1);
  // Once from their start, once out of their look-out, once out of their sleep.
  for (const auto pause : {std::chrono::milliseconds(0), std::chrono::milliseconds(0),
                           std::chrono::milliseconds(20)}) {
    std::this_thread::sleep_for(pause);
    Meeting meeting(kThreads);
    std::atomic<int> num_met = 0;
    team.run(kThreads, [&](std::uint32_t) { num_met += meeting.attend() ? 1 : 0; });
    ASSERT_EQ(num_met, static_cast<int>(kThreads));
  }
}

TEST(CopyTeam, ServesSeveralCallersAtOnce) {
  CopyTeam team(2);
  std::atomic<int> num_wrong = 0;
  std::vector<std::thread> callers;
  for (std::uint32_t caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&, caller] {
      for (std::uint32_t round = 0; round < 200; ++round) {
        const std::uint32_t num_parts = 2 + (caller + round) % 40;
        if (calls_of(team, num_parts) != std::vector<int>(num_parts, 1)) ++num_wrong;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(num_wrong, 0);
}

TEST(CopyTeam, CallersOfAForkedProcessWorkAlone) {
  CopyTeam team(2);
  ASSERT_EQ(calls_of(team, 100), std::vector<int>(100, 1));
  ASSERT_TRUE(team.is_of_this_process());
  std::atomic<bool> ends = false;
  // So that the lock is often held when the process is forked.
  std::thread other([&] {
    while (!ends) std::ignore = calls_of(team, 8);
  });
  for (int i = 0; i < 20; ++i) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      ::alarm(std::chrono::duration_cast<std::chrono::seconds>(kHang).count());
      std::vector<int> calls(100);
      team.run(100, [&](std::uint32_t part) { ++calls[part]; });
      const bool right = std::count(calls.begin(), calls.end(), 1) == 100;
      ::_exit(right && !team.is_of_this_process() ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  }
  ends = true;
  other.join();
}

#ifdef KVFERRY_TEST_HOOKS

TEST(CopyTeam, DoesWithoutAHelperThatCannotBeStartedAndStartsItLater) {
  test_hooks::reset();
  test_hooks::fail_nth_of("gpu.host.helper", 1);
  CopyTeam team(1);
  std::set<std::thread::id> threads;
  team.run(8, [&](std::uint32_t) { threads.insert(std::this_thread::get_id()); });
  EXPECT_EQ(threads, std::set{std::this_thread::get_id()});
  Meeting meeting(2);
  std::atomic<int> num_met = 0;
  team.run(2, [&](std::uint32_t) { num_met += meeting.attend() ? 1 : 0; });
  EXPECT_EQ(num_met, 2);
  test_hooks::reset();
}

#endif

}  // namespace
}  // namespace kvferry::gpu
