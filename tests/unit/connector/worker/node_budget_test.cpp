// SPDX-License-Identifier: Apache-2.0
// One engine's ranks on one node, each with an arena of its own: the machine's memory is divided
// among them, and the tier is what every one of them has.
#include "kvferry/base/error.hpp"
#include "kvferry/connector/scheduler/scheduler_engine.hpp"
#include "kvferry/connector/worker/worker_engine.hpp"
#include "kvferry/gpu/host_link.hpp"

#include "fake_engine.hpp"
#include "made_up_machine.hpp"

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace kvferry::connector {
namespace {

constexpr std::uint32_t kNumRanks = 2;
constexpr std::uint32_t kNumBlocks = 8;
constexpr std::uint64_t kSlotBytes = 128;
constexpr std::uint64_t kPage = 4096;
constexpr std::uint32_t kSlotsPerPage = kPage / kSlotBytes;

/// Of the memory of so many pages of slots, and of their tags.
constexpr std::uint64_t bytes_of(std::uint64_t num_pages) {
  return num_pages * (kPage + kSlotsPerPage * sizeof(std::uint64_t));
}
constexpr std::uint64_t kib_of(std::uint64_t num_pages) {
  return (bytes_of(num_pages) + 1023) / 1024;
}

/// Two workers and their scheduler in one process, on a machine that has 100 pages to spare.
class NodeBudgetTest : public ::testing::Test {
 protected:
  NodeBudgetTest() : pool_(kNumBlocks) {
    machine_.write_available(kib_of(100));
    SchedulerOptions options;
    options.world_size = kNumRanks;
    options.hash_tokens = 4;
    options.num_blocks = kNumBlocks;
    options.classes = {{1, std::vector<std::uint64_t>(kNumRanks, kSlotBytes)}};
    options.max_chunks = 100 * kSlotsPerPage;
    scheduler_ = std::make_unique<SchedulerEngine>(std::move(options));
    scheduler_->set_pool(&pool_);
  }

  /// What a rank wishes that shares the node's budget with the other one.
  [[nodiscard]] WorkerOptions wishes() const {
    WorkerOptions options;
    options.arena = {.pinned_piece_bytes = kPage,
                     .group = {.name = "engine", .num_ranks = kNumRanks},
                     .machine = machine_.root};
    return options;
  }
  void start(std::uint32_t rank, std::uint32_t num_pages, WorkerOptions options) {
    options.rank = RankId(rank);
    options.world_size = kNumRanks;
    options.num_chunks = num_pages * kSlotsPerPage;
    options.transfer.staging_bytes = 4 * kSlotBytes;
    const auto base = reinterpret_cast<std::uintptr_t>(memory_.at(rank).data());
    workers_.at(rank) = std::make_unique<WorkerEngine>(
        gpu::make_host_device(),
        gpu::make_block_geometry(
            {{.base = base, .block_stride_bytes = kSlotBytes, .bytes = kSlotBytes}}, kNumBlocks),
        options);
  }
  /// The message of the ResourceError with which a rank does not start.
  [[nodiscard]] std::string refusal(std::uint32_t rank, std::uint32_t num_pages,
                                    const WorkerOptions& wishes) {
    try {
      start(rank, num_pages, wishes);
    } catch (const ResourceError& error) {
      return error.what();
    }
    ADD_FAILURE() << "rank " << rank << " got " << num_pages << " pages";
    return {};
  }
  /// One step of the engine: the plan to every rank, and their reports back.
  void step() {
    const std::string plan = scheduler_->finish_plan();
    std::array<std::string, kNumRanks> reports;
    std::vector<std::span<const std::byte>> said;
    for (std::uint32_t rank = 0; rank < kNumRanks; ++rank) {
      WorkerEngine& worker = *workers_.at(rank);
      worker.bind(std::as_bytes(std::span(plan)), 0);
      worker.save(0);
      static_cast<void>(worker.collect());
      reports.at(rank) = worker.take_report();
      if (!reports.at(rank).empty()) said.push_back(std::as_bytes(std::span(reports.at(rank))));
    }
    static_cast<void>(scheduler_->fold(said));
  }
  void await(const std::function<bool()>& condition) {
    const auto start = std::chrono::steady_clock::now();
    while (!condition()) {
      ASSERT_LT(std::chrono::steady_clock::now() - start, std::chrono::minutes(2)) << "hangs";
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  [[nodiscard]] std::uint32_t num_slots() const { return scheduler_->num_slots(); }

  cpu_tier::MadeUpMachine machine_;
  FakePool pool_;
  std::array<std::vector<std::byte>, kNumRanks> memory_{
      std::vector<std::byte>(kNumBlocks * kSlotBytes),
      std::vector<std::byte>(kNumBlocks* kSlotBytes)};
  std::unique_ptr<SchedulerEngine> scheduler_;
  std::array<std::unique_ptr<WorkerEngine>, kNumRanks> workers_;
};

// LMCache#5127: each rank alone would fit.
TEST_F(NodeBudgetTest, TheFirstRankIsRefusedWhatTheNodeHasNotForAll) {
  const std::string said = refusal(0, 60, wishes());
  const std::string asked = std::to_string(bytes_of(2 * 60));
  const std::string left = std::to_string(bytes_of(100));
  for (const std::string& part : {"2 ranks that start on this node ask for " + asked + " bytes",
                                  "MemAvailable leaves " + left + " bytes"}) {
    EXPECT_NE(said.find(part), std::string::npos) << part << " is not in: " << said;
  }
}

// So that a process that is killed while it serves leaves no file behind.
TEST_F(NodeBudgetTest, NothingIsClaimedAnyMoreOnceTheEngineServesAndTheArenaIsReady) {
  start(0, 4, wishes());
  start(1, 4, wishes());
  EXPECT_FALSE(std::filesystem::is_empty(machine_.root.claims));
  await([&] {
    step();
    return std::filesystem::is_empty(machine_.root.claims);
  });
  EXPECT_EQ(workers_.at(0)->num_slots(), workers_.at(0)->max_slots());
}

TEST_F(NodeBudgetTest, RanksThatKnowNothingOfEachOtherAreNotGrantedTheSameMemory) {
  WorkerOptions alone = wishes();
  alone.arena.group = {};
  // Of which nothing but a piece is touched when the other one asks.
  alone.pinning_bandwidth_limit = 1;
  start(0, 60, alone);
  EXPECT_NE(refusal(1, 60, alone).find("bytes that other ranks or engines were granted"),
            std::string::npos);
}

TEST_F(NodeBudgetTest, WhatTheNodeHasIsEnoughForAllItsRanksOneAfterTheOther) {
  start(0, 50, wishes());
  await([&] { return workers_[0]->num_slots() == workers_[0]->max_slots(); });
  machine_.write_available(kib_of(50));
  start(1, 50, wishes());
  await([&] {
    step();
    return num_slots() == 50 * kSlotsPerPage;
  });
}

TEST_F(NodeBudgetTest, TheTierGrowsWithTheSlowerRank) {
  start(0, 40, wishes());
  WorkerOptions slow = wishes();
  slow.pinning_bandwidth_limit = 40 * kPage;
  start(1, 20, slow);
  std::uint32_t last = 0;
  bool in_between = false;
  await([&] {
    step();
    EXPECT_GE(num_slots(), last);
    EXPECT_LE(num_slots(), workers_[1]->num_slots());
    last = num_slots();
    in_between |= last > kSlotsPerPage && last < 20 * kSlotsPerPage &&
                  workers_[0]->num_slots() == 40 * kSlotsPerPage;
    return last == 20 * kSlotsPerPage;
  });
  EXPECT_TRUE(in_between);
}

TEST_F(NodeBudgetTest, WhereLessWillDoAllUseWhatThePoorestHas) {
  WorkerOptions less = wishes();
  less.arena.shortage = cpu_tier::Shortage::kTakeLess;
  start(0, 40, less);
  // The other one's cgroup has less than its share.
  const cpu_tier::MadeUpMachine poor;
  poor.write_available(kib_of(100));
  poor.write_proc("self/cgroup", "0::/poor\n");
  poor.write_cgroup("cgroup.controllers", "memory\n");
  poor.write_cgroup("poor/memory.max", std::to_string(bytes_of(10)));
  less.arena.machine = {poor.root.proc, poor.root.cgroup, machine_.root.claims};
  start(1, 40, less);
  EXPECT_EQ(workers_[0]->max_slots(), 40 * kSlotsPerPage);
  EXPECT_EQ(workers_[1]->max_slots(), 10 * kSlotsPerPage);
  const std::vector<std::string>& warnings = workers_[1]->arena_warnings();
  ASSERT_FALSE(warnings.empty());
  EXPECT_NE(warnings.front().find("takes 320 of 1280 slots"), std::string::npos)
      << warnings.front();
  await([&] {
    step();
    return workers_[0]->num_slots() == workers_[0]->max_slots() &&
           workers_[1]->num_slots() == workers_[1]->max_slots();
  });
  step();
  EXPECT_EQ(num_slots(), 10 * kSlotsPerPage);
}

TEST_F(NodeBudgetTest, WhereLessWillDoTheFirstRankLeavesTheOthersTheirPart) {
  WorkerOptions less = wishes();
  less.arena.shortage = cpu_tier::Shortage::kTakeLess;
  less.pinning_bandwidth_limit = 1;
  start(0, 200, less);
  start(1, 200, less);
  EXPECT_EQ(workers_[0]->max_slots(), 50 * kSlotsPerPage);
  // What the first one touches is not missing on this machine.
  EXPECT_GE(workers_[1]->max_slots(), 50 * kSlotsPerPage);
  EXPECT_LE(workers_[1]->max_slots(), 52 * kSlotsPerPage);
}

// Others took the memory since.
TEST_F(NodeBudgetTest, ARankThatRunsOutOnTheWayEndsTheEngineWithItsName) {
  start(0, 20, wishes());
  WorkerOptions slow = wishes();
  slow.pinning_bandwidth_limit = 40 * kPage;
  start(1, 20, slow);
  await([&] { return workers_[0]->num_slots() == 20 * kSlotsPerPage; });
  machine_.write_available(0);
  std::string said;
  await([&] {
    try {
      step();
    } catch (const ResourceError& error) {
      said = error.what();
    }
    return !said.empty();
  });
  for (const std::string part :
       {"rank 1 has", "of 640 slots", "MemAvailable", "allow_smaller_tier"}) {
    EXPECT_NE(said.find(part), std::string::npos) << part << " is not in: " << said;
  }
  EXPECT_LT(num_slots(), 20 * kSlotsPerPage);
}

}  // namespace
}  // namespace kvferry::connector
