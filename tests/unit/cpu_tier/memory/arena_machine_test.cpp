// SPDX-License-Identifier: Apache-2.0
// What an arena asks of the machine: the budget, kinds of pages, the node, the limit of pinned
// memory.
#include "kvferry/base/error.hpp"
#include "kvferry/cpu_tier/memory/arena.hpp"

#include "made_up_machine.hpp"
#include "registration_recorder.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <sys/resource.h>
#include <thread>
#include <vector>

namespace kvferry::cpu_tier {
namespace {

constexpr std::uint64_t kMachinePage = 4096;

// LMCache#5127: a tier larger than the machine is OOM-killed instead of refused.
TEST(Arena, RefusesMoreThanTheBudgetBeforeMapping) {
  const MadeUpMachine machine;
  machine.write_available(1023);
  RegistrationRecorder device;
  const ArenaOptions options{.pinned_piece_bytes = 1 << 20, .machine = machine.root};
  EXPECT_THROW(Arena(device, 4096, 256, options), ResourceError);
  EXPECT_TRUE(device.ranges.empty());
  EXPECT_NO_THROW(Arena(device, 4096, 255, options));
}

TEST(Arena, ItsTagsAreInTheBudget) {
  const MadeUpMachine machine;
  // 256 chunks of a page with 512 tags, a page too.
  machine.write_available(2047);
  RegistrationRecorder device;
  ArenaOptions options{
      .pinned_piece_bytes = 1 << 20, .tags_per_chunk = 512, .machine = machine.root};
  EXPECT_THROW(Arena(device, 4096, 256, options), ResourceError);
  EXPECT_NO_THROW(Arena(device, 4096, 255, options));
  options.shortage = Shortage::kTakeLess;
  EXPECT_EQ(Arena(device, 4096, 256, options).num_chunks(), 255U);
}

TEST(Arena, ItsTagsAreRegisteredWithNoDevice) {
  const MadeUpMachine machine;
  machine.write_available(65'536);
  RegistrationRecorder device;
  const Arena arena(device, 4096, 256, {.tags_per_chunk = 512, .machine = machine.root});
  std::uint64_t registered = 0;
  for (const RegistrationRecorder::Range& range : device.ranges) {
    registered += range.end - range.begin;
  }
  EXPECT_EQ(registered, 256U * 4096U);
}

// Others took the memory since: an error before a page is touched, and not the kernel's signal.
TEST(Arena, TheBudgetIsCheckedAgainForEachPiece) {
  const MadeUpMachine machine;
  machine.write_available(65'536);
  RegistrationRecorder device;
  Arena arena(
      device, 1 << 20, 64,
      {.pinned_piece_bytes = 8 << 20, .start = ArenaStart::kEmpty, .machine = machine.root});
  EXPECT_EQ(arena.grow(1), 8U);
  machine.write_available(8191);
  EXPECT_THROW(arena.grow(1), ResourceError);
  EXPECT_EQ(arena.num_ready(), 8U);
  EXPECT_EQ(device.ranges.size(), 1U);
  machine.write_available(8192);
  EXPECT_EQ(arena.grow(1), 8U);
}

// Two ranks that each ask for 60 % of what there is: the second is refused though nothing is
// touched.
TEST(Arena, WhatAnotherOneWasGrantedIsNotGrantedAgainUntilItIsTouched) {
  const MadeUpMachine machine;
  machine.write_available(100 << 10);
  RegistrationRecorder device;
  const ArenaOptions options{
      .pinned_piece_bytes = 20 << 20, .start = ArenaStart::kEmpty, .machine = machine.root};
  Arena first(device, 1 << 20, 60, options);
  EXPECT_THROW(Arena(device, 1 << 20, 60, options), ResourceError);
  EXPECT_NO_THROW(Arena(device, 1 << 20, 40, options));
  EXPECT_EQ(first.grow(1), 20U);
  machine.write_available(80 << 10);
  EXPECT_NO_THROW(Arena(device, 1 << 20, 40, options));
  EXPECT_THROW(Arena(device, 1 << 20, 41, options), ResourceError);
  first.end_growth();
  EXPECT_NO_THROW(Arena(device, 1 << 20, 80, options));
}

// An engine that asks for far too much, and is told so, is no reason to refuse another one.
TEST(Arena, OneThatIsRefusedTakesNothingFromAnotherBesideIt) {
  const MadeUpMachine machine;
  machine.write_available(100 << 10);
  const ArenaOptions options{.start = ArenaStart::kEmpty, .machine = machine.root};
  const std::jthread greedy([&](const std::stop_token& stop) {
    RegistrationRecorder device;
    while (!stop.stop_requested()) {
      EXPECT_THROW(Arena(device, 1 << 20, 1 << 20, options), ResourceError);
    }
  });
  RegistrationRecorder device;
  for (int i = 0; i < 50; ++i) EXPECT_NO_THROW(Arena(device, 1 << 20, 60, options));
}

TEST(Arena, TakesItsPartOfWhatThereIsWhereLessWillDo) {
  const MadeUpMachine machine;
  machine.write_available(100 << 10);
  RegistrationRecorder device;
  const ArenaOptions options{.start = ArenaStart::kEmpty,
                             .group = {"engine", 2},
                             .shortage = Shortage::kTakeLess,
                             .machine = machine.root};
  const Arena first(device, 1 << 20, 120, options);
  EXPECT_EQ(first.num_chunks(), 50U);
  ASSERT_FALSE(first.warnings().empty());
  EXPECT_NE(first.warnings().front().find("takes 50 of 120 slots: "), std::string::npos);
  const Arena second(device, 1 << 20, 120, options);
  EXPECT_EQ(second.num_chunks(), 50U);
  EXPECT_THROW(Arena(device, 1 << 20, 120, options), ResourceError);
}

TEST(Arena, SlowHugePagesAreGivenUp) {
  RegistrationRecorder device;
  for (const double slow : {0.0, 1e18}) {
    const Arena arena(device, 1 << 20, 64,
                      {.pinned_piece_bytes = 16 << 20,
                       .max_registration_bytes = 16 << 20,
                       .pages = PageKind::kTransparent,
                       .slow_bytes_per_second = slow});
    const ArenaReport report = arena.report();
    EXPECT_EQ(report.pages, PageKind::kTransparent);
    EXPECT_EQ(report.gave_up_huge_pages, slow > 0.0);
    // The first piece says so; whether it got huge pages is the kernel's affair.
    EXPECT_LE(report.huge_page_share, slow > 0.0 ? 0.26 : 1.0);
  }
}

TEST(Arena, SaysOnceThatItsFirstMemoryCameSlowly) {
  using std::chrono::hours;
  using std::chrono::nanoseconds;
  struct Case {
    nanoseconds long_wait;
    double slow_bytes_per_second;
    std::size_t num_warnings;
  };
  RegistrationRecorder device;
  // Any wait is long, and any rate slow; a wait that was short, at any rate; a rate that was high.
  for (const Case& one :
       {Case{nanoseconds{0}, 1e18, 1}, Case{hours{1}, 1e18, 0}, Case{nanoseconds{0}, 0.0, 0}}) {
    Arena arena(device, 1 << 20, 8,
                {.pinned_piece_bytes = 2 << 20,
                 .max_registration_bytes = 2 << 20,
                 .start = ArenaStart::kEmpty,
                 .slow_bytes_per_second = one.slow_bytes_per_second,
                 .long_wait = one.long_wait});
    EXPECT_TRUE(arena.warnings().empty());
    while (arena.grow(1) > 0) {
    }
    ASSERT_EQ(arena.warnings().size(), one.num_warnings);
    if (one.num_warnings == 0) continue;
    EXPECT_EQ(arena.warnings().front().find("the first 2 MiB of the CPU tier took "), 0U)
        << arena.warnings().front();
    EXPECT_NE(arena.warnings().front().find("pinned_piece_bytes"), std::string::npos);
  }
}

TEST(Arena, ReportsWhatItGot) {
  const auto topology = std::make_shared<const MachineTopology>();
  RegistrationRecorder device;
  const std::uint32_t node = topology->nodes().front().number;
  Arena arena(device, 1 << 20, 16,
              {.start = ArenaStart::kEmpty,
               .pages = PageKind::kNormal,
               .placement = {topology, node, "a test"}});
  EXPECT_EQ(arena.report().share_on_node, std::nullopt);
  while (arena.grow(1) > 0) {
  }
  const ArenaReport report = arena.report();
  EXPECT_EQ(report.pages, PageKind::kNormal);
  EXPECT_EQ(report.huge_page_share, 0.0);
  EXPECT_EQ(report.node, node);
  EXPECT_EQ(report.share_on_node.value_or(1.0), 1.0);
}

// A pool that has room, in a cgroup that has not: mapping would pass, and the first touch be a
// signal.
TEST(Arena, NotOfThePoolWhereACgroupKeepsItFromThis) {
  const MadeUpMachine machine;
  machine.write_proc("meminfo", "HugePages_Total: 64\nHugePages_Free: 64\nHugepagesize: 2048 kB\n");
  machine.write_proc("self/cgroup", "0::/a\n");
  machine.write_cgroup("cgroup.controllers", "hugetlb\n");
  machine.write_cgroup("a/hugetlb.2MB.max", "4194304\n");
  RegistrationRecorder device;
  ArenaOptions options{.start = ArenaStart::kEmpty, .machine = machine.root};
  EXPECT_EQ(Arena(device, 1 << 20, 5, options).report().pages, PageKind::kTransparent);
  options.pages = PageKind::kPool;
  try {
    const Arena arena(device, 1 << 20, 5, options);
    FAIL() << "6 MiB of huge pages fit into 4 MiB";
  } catch (const ResourceError& error) {
    EXPECT_NE(std::string(error.what()).find("hugetlb.2MB.max"), std::string::npos) << error.what();
  }
}

TEST(Arena, WarnsOfALowMemlockLimitWhereADevicePins) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_MEMLOCK, &before), 0);
  const rlimit low{.rlim_cur = kMachinePage, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_MEMLOCK, &low), 0);
  RegistrationRecorder device;
  EXPECT_TRUE(Arena(device, kMachinePage, 2).warnings().empty());
  device.backend = gpu::BackendKind::kCuda;
  EXPECT_TRUE(Arena(device, kMachinePage, 1).warnings().empty());
  const std::vector<std::string> warnings = Arena(device, kMachinePage, 2).warnings();
  ASSERT_EQ(warnings.size(), 1U);
  EXPECT_NE(warnings.front().find("ulimit -l"), std::string::npos) << warnings.front();
  EXPECT_EQ(::setrlimit(RLIMIT_MEMLOCK, &before), 0);
}

TEST(Arena, OfThePoolIfItHasEnough) {
  const HugePagePool pool = huge_page_pool();
  RegistrationRecorder device;
  const auto num_chunks = static_cast<std::uint32_t>(pool.num_free + 1);
  EXPECT_THROW(Arena(device, pool.page_bytes, num_chunks,
                     {.start = ArenaStart::kEmpty, .pages = PageKind::kPool}),
               ResourceError);
  if (pool.num_free == 0) GTEST_SKIP() << "the pool of huge pages is empty";
  const Arena arena(device, pool.page_bytes, 1);
  EXPECT_EQ(arena.report().pages, PageKind::kPool);
  EXPECT_EQ(arena.report().huge_page_share, 1.0);
}

}  // namespace
}  // namespace kvferry::cpu_tier
