// SPDX-License-Identifier: Apache-2.0
// Members of one replica group, in one process and in several, make their memory resident together.
#include "kvferry/base/error.hpp"
#include "kvferry/base/test_hooks.hpp"
#include "kvferry/cpu_tier/memory/arena.hpp"
#include "kvferry/cpu_tier/memory/arena_growth.hpp"
#include "kvferry/gpu/host_link.hpp"

#include "arena_replica_fixture.hpp"
#include "complaint.hpp"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

namespace kvferry::cpu_tier {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;

/// A member in a process of its own, executed anew: a forked one has none of oneTBB's threads.
class OtherMember {
 public:
  /// Returns when the process has done what DISABLED_Member does for that role.
  OtherMember(const std::string& role, const MachineRoot& machine) {
    std::array<int, 2> ends{};
    EXPECT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
    const std::string proc = machine.proc.string();
    const std::string out = std::to_string(ends[1]);
    process_ = ::fork();
    if (process_ == 0) {
      ::fcntl(ends[1], F_SETFD, 0);
      ::setenv("KVFERRY_TEST_ROLE", role.c_str(), 1);
      ::setenv("KVFERRY_TEST_MACHINE", machine.proc.parent_path().c_str(), 1);
      ::setenv("KVFERRY_TEST_OUT", out.c_str(), 1);
      ::execl("/proc/self/exe", "member", "--gtest_filter=ArenaReplica.DISABLED_Member",
              "--gtest_also_run_disabled_tests", nullptr);
      ::_exit(99);
    }
    ::close(ends[1]);
    char done = 0;
    EXPECT_EQ(::read(ends[0], &done, 1), 1) << "the other member failed";
    ::close(ends[0]);
  }
  ~OtherMember() { kill(); }
  OtherMember(const OtherMember&) = delete;
  OtherMember& operator=(const OtherMember&) = delete;

  void kill() {
    if (process_ <= 0) return;
    ::kill(process_, SIGKILL);
    EXPECT_EQ(::waitpid(process_, nullptr, 0), process_);
    process_ = -1;
  }
  [[nodiscard]] pid_t process() const { return process_; }

 private:
  pid_t process_ = -1;
};

TEST(ArenaReplica, DISABLED_Member) {
  const std::string role = ::getenv("KVFERRY_TEST_ROLE");
  const fs::path directory = ::getenv("KVFERRY_TEST_MACHINE");
  const int out = std::atoi(::getenv("KVFERRY_TEST_OUT"));
  const MachineRoot machine{directory / "proc", directory / "cgroup", directory / "claims"};
  const auto device = gpu::make_host_device();
  const Member member = options_of(role == "second" ? 1 : 0, 2, machine);
  Arena arena(*device, make_group_source(member.replicas), kChunkBytes, kNumChunks, member);
  arena.grow(1);
  fill(arena, 0, 7);
  std::optional<ArenaGrowth> growth;
  if (role == "second") {
    growth.emplace(arena);
    await([&] { return arena.num_ready() == kNumChunks; });
    for (std::uint32_t chunk = 0; chunk < kNumChunks; ++chunk) {
      if (member.replicas.is_home_of(arena.piece_of(ChunkId(chunk)))) {
        fill(arena, chunk, static_cast<std::uint8_t>(100 + chunk));
      }
    }
  }
  ASSERT_EQ(::write(out, "x", 1), 1);
  for (;;) ::pause();
}

TEST_F(ArenaReplicaTest, MembersReadWhatTheOthersWrote) {
  std::vector<std::unique_ptr<Arena>> arenas;
  std::vector<std::unique_ptr<ArenaGrowth>> growths;
  for (std::uint32_t index = 0; index < 3; ++index) {
    arenas.push_back(arena(options(index, 3)));
    EXPECT_EQ(arenas.back()->chunks_per_piece(), 2U);
    // One after the other in one thread: the first piece waits for nobody but its home.
    EXPECT_EQ(arenas.back()->grow(1), 2U);
  }
  for (const auto& of : arenas) growths.push_back(std::make_unique<ArenaGrowth>(*of));
  for (const auto& growth : growths) {
    await([&] { return growth->ended(); });
    EXPECT_EQ(growth->failure(), "");
  }
  for (std::uint32_t chunk = 0; chunk < kNumChunks; ++chunk) {
    std::uint32_t num_homes = 0;
    for (std::uint32_t index = 0; index < 3; ++index) {
      if (!options(index, 3).replicas.is_home_of(arenas[index]->piece_of(ChunkId(chunk)))) continue;
      ++num_homes;
      EXPECT_EQ(chunk / 2 % 3, index);
      fill(*arenas[index], chunk, static_cast<std::uint8_t>(chunk + 1));
    }
    EXPECT_EQ(num_homes, 1U);
  }
  for (const auto& of : arenas) {
    EXPECT_EQ(of->num_ready(), kNumChunks);
    for (std::uint32_t chunk = 0; chunk < kNumChunks; ++chunk) {
      EXPECT_TRUE(holds(*of, chunk, static_cast<std::uint8_t>(chunk + 1))) << chunk;
      EXPECT_NE(of->chunk_device_address(ChunkId(chunk)), 0U);
    }
  }
}

TEST_F(ArenaReplicaTest, MembersOfSeveralProcessesReadWhatTheOthersWrote) {
  const auto first = arena(options(0));
  first->grow(1);
  ArenaGrowth growth(*first);
  OtherMember second("second", machine_.root);
  await([&] { return growth.ended(); });
  EXPECT_EQ(growth.failure(), "");
  ASSERT_EQ(first->num_ready(), kNumChunks);
  EXPECT_TRUE(holds(*first, 0, 7));
  for (std::uint32_t chunk = 0; chunk < kNumChunks; ++chunk) {
    if (chunk / 2 % 2 == 0) continue;
    EXPECT_TRUE(holds(*first, chunk, static_cast<std::uint8_t>(100 + chunk))) << chunk;
  }
  // Its death takes nothing away.
  second.kill();
  EXPECT_TRUE(holds(*first, 2, 102));
}

TEST_F(ArenaReplicaTest, AMemberThatNeverComesEndsTheGrowthOfTheOthersWithAName) {
  Member of = options(0);
  of.replicas.patience = milliseconds(30);
  const auto first = arena(of);
  EXPECT_EQ(first->grow(1), 2U);
  const ArenaGrowth growth(*first);
  await([&] { return growth.ended(); });
  expect_named(growth.failure(), {"piece 1 ", "member 1 of 2", "has not joined"});
  EXPECT_EQ(first->num_ready(), 2U);
}

TEST_F(ArenaReplicaTest, AFirstPieceThatNeverComesEndsTheStartWithAName) {
  const auto first = arena(options(0));
  Member of = options(1);
  of.replicas.patience = milliseconds(30);
  const auto second = arena(of);
  expect_named(complaint_of<TimeoutError>([&] { second->grow(1); }),
               {"piece 0 ", "member 0 of 2", "has not made it resident"});
}

TEST_F(ArenaReplicaTest, AKilledFirstMemberEndsTheGrowthAndLeavesNothingBehind) {
  std::optional<OtherMember> first;
  first.emplace("first", machine_.root);
  const std::string process = std::to_string(first->process());
  const auto second = arena(options(1));
  EXPECT_EQ(second->grow(1), 2U);
  first->kill();
  expect_named(complaint_of<ResourceError>([&] { second->grow(1); }),
               {"piece 2 ", "member 0 of 2 (process " + process + ")", "is gone"});
  EXPECT_EQ(second->num_ready(), 2U);
  EXPECT_TRUE(holds(*second, 0, 7));
  // What it left has a name still, which is nobody's: a new engine takes it over.
  EXPECT_FALSE(board().empty());
  Member of = options(1);
  of.replicas.patience = milliseconds(30);
  EXPECT_THROW(static_cast<void>(arena(of)), TimeoutError);
  {
    const auto next = arena(options(0));
    const auto other = arena(options(1));
    EXPECT_EQ(next->grow(1), 2U);
    EXPECT_FALSE(holds(*next, 0, 7));
  }
  EXPECT_TRUE(board().empty());
}

TEST_F(ArenaReplicaTest, AMemberThatClosesEndsTheGrowthOfTheOthers) {
  const auto first = arena(options(0));
  EXPECT_EQ(first->grow(1), 2U);
  static_cast<void>(arena(options(1)));
  expect_named(complaint_of<ResourceError>([&] { first->grow(1); }),
               {"member 1 of 2", "has ended its growth: it closed its memory"});
}

#ifdef KVFERRY_TEST_HOOKS
// On its own node, and by nobody else: the first touch decides where a page lies.
TEST_F(ArenaReplicaTest, EachPieceIsPopulatedOnceByItsHome) {
  const auto first = arena(options(0));
  const auto second = arena(options(1));
  std::atomic<std::uint32_t> num_by_first = 0;
  std::atomic<std::uint32_t> num_by_second = 0;
  std::atomic<std::thread::id> second_thread;
  test_hooks::on_pause("arena.populate_own_piece", [&] {
    ++(std::this_thread::get_id() == second_thread.load() ? num_by_second : num_by_first);
  });
  std::jthread other([&] {
    second_thread = std::this_thread::get_id();
    while (second->grow(std::uint64_t{1} << 30U) > 0) {
    }
  });
  while (first->grow(std::uint64_t{1} << 30U) > 0) {
  }
  other.join();
  EXPECT_EQ(first->num_ready(), kNumChunks);
  EXPECT_EQ(second->num_ready(), kNumChunks);
  EXPECT_EQ(num_by_first, 8U);  // Of 15 pieces.
  EXPECT_EQ(num_by_second, 7U);
}

TEST_F(ArenaReplicaTest, WhatAHomeCannotHaveEndsTheGrowthOfAll) {
  const auto first = arena(options(0));
  const auto second = arena(options(1));
  EXPECT_EQ(first->grow(1), 2U);
  EXPECT_EQ(second->grow(1), 2U);
  test_hooks::fail_nth_of("arena.populate", 1);
  const std::string own = complaint_of<ResourceError>([&] { second->grow(1); });
  expect_named(own, {"populating"});
  expect_named(complaint_of<ResourceError>([&] { first->grow(1); }),
               {"member 1 of 2", "has ended its growth: populating"});
  for (const Arena* of : {first.get(), second.get()}) {
    EXPECT_EQ(of->num_ready(), 2U);
    fill(*of, 1, 9);
  }
}

TEST_F(ArenaReplicaTest, NobodyMapsAPieceBeforeItsHomeHasIt) {
  const auto first = arena(options(0));
  const auto second = arena(options(1));
  EXPECT_EQ(first->grow(1), 2U);
  EXPECT_EQ(second->grow(1), 2U);
  std::atomic<bool> may_go = false;
  std::atomic<std::uint32_t> num_held = 0;
  std::jthread other;
  test_hooks::on_pause("arena.populate_own_piece", [&] {
    if (std::this_thread::get_id() != other.get_id()) return;
    ++num_held;
    while (!may_go) std::this_thread::sleep_for(milliseconds(1));
  });
  std::atomic<bool> go = false;
  other = std::jthread([&] {
    while (!go) std::this_thread::sleep_for(milliseconds(1));
    second->grow(1);
  });
  go = true;
  await([&] { return num_held > 0; });
  std::stop_source stop;
  std::jthread stopper([&] {
    std::this_thread::sleep_for(milliseconds(50));
    stop.request_stop();
  });
  EXPECT_EQ(first->grow(1, stop.get_token()), 0U);
  EXPECT_EQ(first->num_ready(), 2U);
  may_go = true;
  std::stop_source never;
  EXPECT_EQ(first->grow(1, never.get_token()), 4U);
  other.join();
  EXPECT_EQ(second->num_ready(), 6U);
}
#endif

}  // namespace
}  // namespace kvferry::cpu_tier
