// SPDX-License-Identifier: Apache-2.0
// Processes come to a shared tier and go: who makes its file, and who removes it.
#include "kvferry/base/error.hpp"
#include "kvferry/base/test_hooks.hpp"
#include "kvferry/cpu_tier/peers/shared_tier.hpp"

#include "complaint.hpp"
#include "other_process.hpp"
#include "shared_tier_fixture.hpp"
#include "tier_path.hpp"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

namespace kvferry::cpu_tier {
namespace {

TEST_F(SharedTierTest, AllWhoMakeItAtOnceHaveTheSameFile) {
  std::array<std::unique_ptr<SharedTier>, 6> tiers;
  {
    std::vector<std::jthread> threads;
    for (auto& tier : tiers) threads.emplace_back([&] { tier = open(); });
  }
  std::set<std::uint64_t> inodes;
  for (const auto& tier : tiers) inodes.insert(tier->file().inode());
  EXPECT_EQ(inodes, std::set<std::uint64_t>{file_.inode()});
}

// None of them is made and left for another one while somebody has it.
TEST_F(SharedTierTest, WhoComesAndGoesAllTheTimeNeverHasAnotherThanTheOneThatIsNamed) {
  std::atomic<std::uint32_t> num_wrong = 0;
  std::vector<std::jthread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 40; ++round) {
        const auto tier = open();
        num_wrong += tier->file().inode() == file_.inode() ? 0 : 1;
      }
    });
  }
  threads.clear();
  EXPECT_EQ(num_wrong, 0U);
  EXPECT_FALSE(file_.exists());
}

TEST_F(SharedTierTest, TheLastRemovesIt) {
  auto first = open();
  auto second = open();
  first.reset();
  EXPECT_EQ(file_.inode(), second->file().inode());
  second.reset();
  EXPECT_FALSE(file_.exists());
}

TEST_F(SharedTierTest, KeptItStaysForWhoComesNext) {
  const std::uint64_t before = [&] {
    const auto tier = SharedTier::make_or_open(file_.kept());
    tier->metadata()[tier->places().slots] = std::byte{42};
    return tier->file().inode();
  }();
  ASSERT_EQ(file_.inode(), before);
  const auto again = open();
  EXPECT_EQ(again->file().inode(), before);
  EXPECT_EQ(again->metadata()[again->places().slots], std::byte{42});
}

TEST_F(SharedTierTest, AProcessThatIsKilledHoldsItNoMore) {
  EXPECT_TRUE(WIFSIGNALED(in_a_process([&] {
    const auto tier = open();
    ::kill(::getpid(), SIGKILL);
    return 0;
  })));
  ASSERT_TRUE(file_.exists());
  open().reset();
  EXPECT_FALSE(file_.exists());
}

#ifdef KVFERRY_TEST_HOOKS

TEST_F(SharedTierTest, WhoIsLaterToPublishTakesTheOther) {
  std::unique_ptr<SharedTier> first;
  once_at("shared_tier.before_publish", [&] { first = open(); });
  const auto second = open();
  ASSERT_TRUE(first);
  EXPECT_EQ(first->file().inode(), second->file().inode());
  EXPECT_EQ(first->file().inode(), file_.inode());
}

TEST_F(SharedTierTest, WhatIsRemovedBetweenOpeningAndHoldingIsMadeAnew) {
  auto first = open();
  const std::uint64_t before = file_.inode();
  once_at("shared_tier.opened", [&] { first.reset(); });
  const auto second = open();
  ASSERT_FALSE(first);
  EXPECT_NE(second->file().inode(), before);
  EXPECT_EQ(second->file().inode(), file_.inode());
}

TEST_F(SharedTierTest, WhatSomebodyHoldsIsNotRemovedThoughItWasNotLookedAtYet) {
  auto first = open();
  const std::uint64_t before = file_.inode();
  once_at("tier_hold.held", [&] { first.reset(); });
  const auto second = open();
  ASSERT_FALSE(first);
  EXPECT_EQ(second->file().inode(), before);
  EXPECT_EQ(file_.inode(), before);
}

TEST_F(SharedTierTest, WhoComesWhenTheLastHasLetGoKeepsIt) {
  auto first = open();
  const std::uint64_t before = file_.inode();
  std::unique_ptr<SharedTier> second;
  once_at("tier_hold.let_go", [&] { second = open(); });
  first.reset();
  ASSERT_TRUE(second);
  EXPECT_EQ(second->file().inode(), before);
  EXPECT_EQ(file_.inode(), before);
}

TEST_F(SharedTierTest, WhoComesWhileItIsBeingRemovedMakesItAnew) {
  auto first = open();
  const std::uint64_t before = file_.inode();
  std::unique_ptr<SharedTier> second;
  std::jthread joiner;
  once_at("tier_hold.alone", [&] {
    joiner = std::jthread([&] { second = open(); });
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  });
  first.reset();
  joiner.join();
  ASSERT_TRUE(second);
  EXPECT_NE(second->file().inode(), before);
  EXPECT_EQ(second->file().inode(), file_.inode());
}

TEST_F(SharedTierTest, WhatWasMadeBehindARemovalStays) {
  auto first = open();
  const std::uint64_t before = file_.inode();
  std::unique_ptr<SharedTier> second;
  once_at("tier_hold.removed", [&] { second = open(); });
  first.reset();
  ASSERT_TRUE(second);
  EXPECT_NE(second->file().inode(), before);
  EXPECT_EQ(second->file().inode(), file_.inode());
}

TEST_F(SharedTierTest, OfTwoThatGoAtOnceOneRemovesIt) {
  for (const char* point : {"tier_hold.let_go", "tier_hold.alone", "tier_hold.removed"}) {
    auto first = open();
    auto second = open();
    once_at(point, [&] { second.reset(); });
    first.reset();
    // At the later points the first one was not the last, or nobody was left to pass them.
    second.reset();
    EXPECT_FALSE(file_.exists()) << point;
  }
}

TEST_F(SharedTierTest, WhoIsKilledWhileRemovingStopsNobody) {
  for (const char* point : {"tier_hold.let_go", "tier_hold.alone", "tier_hold.removed"}) {
    const int status = in_a_process([&] {
      auto tier = open();
      test_hooks::on_pause(point, [] { ::kill(::getpid(), SIGKILL); });
      tier.reset();
      return 0;
    });
    ASSERT_TRUE(WIFSIGNALED(status)) << point;
    EXPECT_EQ(file_.exists(), std::string(point) != "tier_hold.removed");
    const auto tier = open();
    EXPECT_EQ(tier->file().inode(), file_.inode()) << point;
  }
}

TEST_F(SharedTierTest, WhoIsStoppedWhileRemovingIsWaitedForWithABound) {
  const pid_t child = ::fork();
  if (child == 0) {
    auto tier = open();
    test_hooks::on_pause("tier_hold.alone", [] { ::raise(SIGSTOP); });
    tier.reset();
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, WUNTRACED), child);
  ASSERT_TRUE(WIFSTOPPED(status));
  SharedTierOptions impatient = file_.options();
  impatient.patience = std::chrono::milliseconds(20);
  expect_named(
      complaint_of<TimeoutError>([&] { static_cast<void>(SharedTier::make_or_open(impatient)); }),
      {"about to be removed", "fuser"});
  ::kill(child, SIGCONT);
  const auto tier = open();
  EXPECT_EQ(tier->file().inode(), file_.inode());
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(tier->file().inode(), file_.inode());
}

#endif

}  // namespace
}  // namespace kvferry::cpu_tier
