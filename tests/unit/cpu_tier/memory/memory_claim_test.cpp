// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/memory/memory_claim.hpp"

#include "kvferry/base/error.hpp"
#include "kvferry/cpu_tier/memory/claim_turn.hpp"

#include "byte_sizes.hpp"
#include "made_up_machine.hpp"
#include "other_process.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>
#include <vector>

namespace kvferry::cpu_tier {
namespace {

namespace fs = std::filesystem;

/// Of what comes at once on a machine that is not loaded.
constexpr std::chrono::seconds kLong{60};

/// A machine with 100 KiB to spare.
class MemoryClaimTest : public ::testing::Test, protected MadeUpMachine {
 protected:
  MemoryClaimTest() { write_available(100); }

  [[nodiscard]] std::unique_ptr<MemoryClaim> claim(std::uint64_t kib,
                                                   const ClaimGroup& group = {}) const {
    return std::make_unique<MemoryClaim>(kib * kKiB, PageKind::kNormal, group, root);
  }
  [[nodiscard]] std::uint64_t num_files() const {
    return static_cast<std::uint64_t>(
        std::distance(fs::directory_iterator(root.claims), fs::directory_iterator()));
  }
};

/// Another process with a claim of its own.
class Claimant : public OtherProcess {
 public:
  Claimant(std::uint64_t bytes, const MachineRoot& root)
      : OtherProcess([&] {
          const MemoryClaim claim(bytes, PageKind::kNormal, {}, root);
          stay();
        }) {}
};

TEST_F(MemoryClaimTest, AnImaginedOneMeetsTheOthersAndIsSeenByNobody) {
  const auto other = claim(60);
  const auto imagined = MemoryClaim::imagined(50 * kKiB, PageKind::kNormal, {}, root);
  EXPECT_EQ(num_files(), 1U);
  EXPECT_TRUE(imagined.shortage());
  EXPECT_EQ(imagined.why_unseen(), "");
  EXPECT_FALSE(claim(40)->shortage());
}

// A server forks children (workers, tools), and is killed.
TEST_F(MemoryClaimTest, AClaimEndsWithItsProcessThoughAChildOfItLivesOn) {
  using SharedPid = std::atomic<pid_t>;
  auto* const child = new (::mmap(nullptr, sizeof(SharedPid), PROT_READ | PROT_WRITE,
                                  MAP_SHARED | MAP_ANONYMOUS, -1, 0)) SharedPid(0);
  {
    const OtherProcess claimant([&] {
      const MemoryClaim claim(60 * kKiB, PageKind::kNormal, {}, root);
      if (::fork() == 0) {
        *child = ::getpid();
        for (;;) ::pause();
      }
      // The child gives up what it has of the claim before its fork() returns.
      while (*child == 0) ::usleep(100);
      OtherProcess::stay();
    });
    EXPECT_THROW(claim(60)->check(), ResourceError);
  }
  EXPECT_EQ(::kill(*child, 0), 0) << "the child lives";
  EXPECT_NO_THROW(claim(60)->check());
  ::kill(*child, SIGKILL);
  ::munmap(child, sizeof(SharedPid));
}

TEST_F(MemoryClaimTest, AForkedChildThatLeavesWithdrawsNothing) {
  const auto mine = claim(60);
  EXPECT_EQ(in_a_process([&] {
              const_cast<MemoryClaim&>(*mine).~MemoryClaim();
              return 0;
            }),
            0);
  EXPECT_EQ(num_files(), 1U);
  EXPECT_THROW(claim(60)->check(), ResourceError);
}

TEST_F(MemoryClaimTest, TwoThatEachFitAloneDoNotFitTogether) {
  const auto first = claim(60);
  EXPECT_NO_THROW(first->check());
  const auto second = claim(60);
  try {
    second->check();
    FAIL() << "120 KiB fit into 100";
  } catch (const ResourceError& error) {
    const std::string message = error.what();
    for (const char* part : {"MemAvailable", "less 61440 bytes that other ranks or engines",
                             "leaves 40960 bytes", "asks for 61440 bytes"}) {
      EXPECT_NE(message.find(part), std::string::npos) << part << " is not in: " << message;
    }
  }
  // Of two that were made at once each sees the other.
  EXPECT_THROW(first->check(), ResourceError);
}

TEST_F(MemoryClaimTest, WhatWasTouchedOrGivenBackCountsNoMore) {
  auto first = claim(60);
  const auto second = claim(60);
  first->set_bytes(40 * kKiB);
  EXPECT_NO_THROW(second->check());
  first->set_bytes(100 * kKiB);
  EXPECT_THROW(second->check(), ResourceError);
  first.reset();
  EXPECT_NO_THROW(second->check());
  EXPECT_EQ(num_files(), 1U);
}

TEST_F(MemoryClaimTest, AnotherProcessCountsForAsLongAsItLives) {
  Claimant other(60 * kKiB, root);
  const auto mine = claim(60);
  EXPECT_THROW(mine->check(), ResourceError);
  EXPECT_EQ(num_files(), 2U);
  other.end();
  EXPECT_NO_THROW(mine->check());
  EXPECT_EQ(num_files(), 1U);
}

// A stopped process blocks nobody.
TEST_F(MemoryClaimTest, NobodyWaitsForAnybody) {
  std::vector<std::unique_ptr<Claimant>> others;
  for (int i = 0; i < 3; ++i) others.push_back(std::make_unique<Claimant>(20 * kKiB, root));
  EXPECT_NO_THROW(claim(40)->check());
  EXPECT_THROW(claim(41)->check(), ResourceError);
}

TEST_F(MemoryClaimTest, OfMoreThanThereIsAtOnceNeverAllAreGranted) {
  for (int round = 0; round < 50; ++round) {
    std::array<bool, 2> granted{};
    {
      std::array<std::unique_ptr<MemoryClaim>, 2> claims;
      std::vector<std::jthread> threads;
      for (std::size_t i = 0; i < 2; ++i) {
        threads.emplace_back([&, i] {
          claims[i] = claim(60);
          granted[i] = !claims[i]->shortage();
        });
      }
      threads.clear();
    }
    EXPECT_FALSE(granted[0] && granted[1]) << "in round " << round;
  }
}

// One that is refused does not count, not even for a moment, against another that fits.
TEST_F(MemoryClaimTest, InTurnsOneOfTwoIsGranted) {
  for (int round = 0; round < 50; ++round) {
    std::atomic<int> num_granted = 0;
    std::barrier both_have_ended(2);
    std::vector<std::jthread> threads;
    for (int i = 0; i < 2; ++i) {
      threads.emplace_back([&] {
        std::unique_ptr<MemoryClaim> granted;
        {
          const ClaimTurn turn(root, kLong);
          EXPECT_TRUE(turn.is_held());
          auto mine = claim(60);
          if (!mine->shortage()) granted = std::move(mine);
        }
        if (granted) ++num_granted;
        both_have_ended.arrive_and_wait();
      });
    }
    threads.clear();
    EXPECT_EQ(num_granted, 1) << "in round " << round;
  }
}

TEST_F(MemoryClaimTest, ATurnEndsWithItsProcessAndIsNotWaitedForForever) {
  OtherProcess other([this] {
    const ClaimTurn turn(root, kLong);
    EXPECT_TRUE(turn.is_held());
    OtherProcess::stay();
  });
  EXPECT_FALSE(ClaimTurn(root, std::chrono::milliseconds(5)).is_held());
  EXPECT_NO_THROW(claim(100)->check());
  other.end();
  EXPECT_TRUE(ClaimTurn(root, kLong).is_held());
}

// Its copy of a descriptor would keep a lock for as long as it lives.
TEST_F(MemoryClaimTest, AForkedChildKeepsNoTurn) {
  std::optional<ClaimTurn> turn(std::in_place, root, kLong);
  const OtherProcess child([] { OtherProcess::stay(); });
  turn.reset();
  EXPECT_TRUE(ClaimTurn(root, std::chrono::milliseconds(5)).is_held());
}

TEST_F(MemoryClaimTest, WhereNothingCanBeLockedThereAreNoTurns) {
  fs::remove(root.claims);
  EXPECT_FALSE(ClaimTurn(root, kLong).is_held());
}

TEST_F(MemoryClaimTest, TheFirstRankOfANodeSpeaksForAll) {
  const ClaimGroup group{"engine", 3};
  try {
    claim(34, group)->check();
    FAIL() << "three times 34 KiB fit into 100";
  } catch (const ResourceError& error) {
    const std::string message = error.what();
    EXPECT_NE(message.find("3 ranks that start on this node ask for 104448 bytes"),
              std::string::npos)
        << message;
  }
  const auto first = claim(33, group);
  EXPECT_EQ(first->num_ranks_to_come(), 3U);
  EXPECT_NO_THROW(first->check());
  // The first one has touched what it was granted when the next one comes.
  first->set_bytes(0);
  write_available(67);
  const auto second = claim(33, group);
  EXPECT_EQ(second->num_ranks_to_come(), 2U);
  EXPECT_NO_THROW(second->check());
  const auto third = claim(33, group);
  EXPECT_EQ(third->num_ranks_to_come(), 1U);
  EXPECT_NO_THROW(third->check());
  EXPECT_EQ(claim(1, {"another engine", 3})->num_ranks_to_come(), 3U);
  EXPECT_EQ(claim(1)->num_ranks_to_come(), 1U);
}

TEST_F(MemoryClaimTest, OnlyLimitsThatBothAreUnderAreShared) {
  write_proc("self/cgroup", "0::/a\n");
  write_cgroup("cgroup.controllers", "memory hugetlb\n");
  write_cgroup("a/memory.max", "65536\n");
  write_cgroup("b/memory.max", "65536\n");
  const auto in_a = claim(60);
  write_proc("self/cgroup", "0::/b\n");
  const auto in_b = claim(30);
  EXPECT_NO_THROW(in_b->check());
  // What the machine has is everybody's.
  const auto too_much = claim(41);
  EXPECT_NE(too_much->shortage().value_or("").find("MemAvailable, less 92160 bytes"),
            std::string::npos);
}

TEST_F(MemoryClaimTest, PagesOfThePoolAreAnotherMatterThanMemory) {
  constexpr std::uint64_t kHugePage = std::uint64_t{2} << 20U;
  write_proc(
      "meminfo",
      "MemAvailable: 100 kB\nHugePages_Total: 8\nHugePages_Free: 8\nHugepagesize: 2048 kB\n");
  write_proc("self/cgroup", "0::/a\n");
  write_cgroup("cgroup.controllers", "memory hugetlb\n");
  write_cgroup("a/hugetlb.2MB.max", std::to_string(6 * kHugePage) + "\n");
  write_cgroup("a/memory.max", "102400\n");
  const auto memory = claim(60);
  const MemoryClaim first(4 * kHugePage, PageKind::kPool, {}, root);
  EXPECT_EQ(first.shortage(), std::nullopt);
  EXPECT_EQ(memory->shortage(), std::nullopt);
  // The mapping of the first took its four out of the pool; of the cgroup nothing until they are
  // used.
  const MemoryClaim second(3 * kHugePage, PageKind::kPool, {}, root);
  EXPECT_NE(second.shortage().value_or("").find("hugetlb.2MB.max"), std::string::npos);
}

TEST_F(MemoryClaimTest, WhatNobodyCanSeeIsHeldToTheLimitsAndSaysSo) {
  fs::remove(root.claims);
  const auto unseen = claim(60);
  EXPECT_NE(unseen->why_unseen().find(root.claims.string()), std::string::npos);
  EXPECT_NO_THROW(unseen->check());
  EXPECT_THROW(claim(101)->check(), ResourceError);
}

TEST_F(MemoryClaimTest, OtherFilesAreNobodysClaim) {
  std::ofstream(root.claims / "something else") << "x";
  std::ofstream(root.claims / "kvferry-claim-short") << "x";
  fs::create_directory(root.claims / "kvferry-claim-folder");
  EXPECT_NO_THROW(claim(100)->check());
  EXPECT_TRUE(fs::exists(root.claims / "something else"));
}

}  // namespace
}  // namespace kvferry::cpu_tier
