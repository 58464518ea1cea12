// SPDX-License-Identifier: Apache-2.0
// Ranks that hold the same bytes: each stores its part of the one arena, and all load all of it.
#include "kvferry/connector/scheduler/scheduler_engine.hpp"
#include "kvferry/connector/wire/step_plan.hpp"
#include "kvferry/connector/wire/step_report.hpp"
#include "kvferry/connector/worker/worker_engine.hpp"
#include "kvferry/gpu/host_link.hpp"

#include "borrowed_device.hpp"
#include "made_up_machine.hpp"
#include "valve.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace kvferry::connector {
namespace {

using Kind = gpu::OperationInfo::Kind;

constexpr std::uint32_t kNumRanks = 2;
constexpr std::uint32_t kNumBlocks = 32;
constexpr std::uint64_t kBlockBytes = 1024;
constexpr std::uint32_t kNumSlots = 24;
/// A page: slots 0 to 3 are of rank 0, 4 to 7 of rank 1, and so on.
constexpr std::uint32_t kSlotsPerPiece = 4;
constexpr DomainId kDomain{5};
constexpr Owner kOwner{kDomain, RequestId(1), Generation(1)};

bool is_home(std::uint32_t rank, std::uint32_t slot) {
  return slot / kSlotsPerPiece % kNumRanks == rank;
}

/// One rank, on a host device whose link the test can hold and fail.
struct Rank {
  Rank(std::uint32_t number, std::uint32_t ring_blocks, const cpu_tier::MachineRoot& machine)
      : device(gpu::make_host_device(
            {}, [this](const gpu::OperationInfo& info) { return valve.pass(info); })) {
    WorkerOptions options;
    options.rank = RankId(number);
    options.world_size = kNumRanks;
    options.num_chunks = kNumSlots;
    options.arena = {.pinned_piece_bytes = kNumRanks * kSlotsPerPiece * kBlockBytes,
                     .pages = cpu_tier::PageKind::kNormal,
                     .machine = machine};
    options.replicas = {.name = "engine", .size = kNumRanks, .index = number};
    options.transfer.staging_bytes = ring_blocks * kBlockBytes;
    options.transfer.piece_bytes = kBlockBytes;
    engine = std::make_unique<WorkerEngine>(
        std::make_unique<transfer::BorrowedDevice>(*device),
        gpu::make_block_geometry({{.base = reinterpret_cast<std::uintptr_t>(pool.data()),
                                   .block_stride_bytes = kBlockBytes,
                                   .bytes = kBlockBytes}},
                                 kNumBlocks),
        options);
  }
  ~Rank() { valve.open_all(); }
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  std::span<std::uint8_t> block(std::uint32_t number) {
    return std::span(pool).subspan(number * kBlockBytes, kBlockBytes);
  }
  void collect() {
    static_cast<void>(engine->collect());
    const std::string bytes = engine->take_report();
    if (bytes.empty()) return;
    const StepReport report = decode_report(std::as_bytes(std::span(bytes)));
    for (const StoreGathered& of : report.gathered) gathered[of.transfer] = of.num_gathered;
    for (const TransferEnded& of : report.stores) stores[of.transfer] = of.outcome;
    for (const TransferEnded& of : report.loads) loads[of.transfer] = of.outcome;
  }

  transfer::Valve valve;
  std::vector<std::uint8_t> pool = std::vector<std::uint8_t>(kNumBlocks * kBlockBytes);
  std::unique_ptr<gpu::Device> device;
  std::unique_ptr<WorkerEngine> engine;
  std::map<TransferId, std::uint32_t> gathered;
  std::map<TransferId, Outcome> stores;
  std::map<TransferId, Outcome> loads;
};

class WorkerReplicaTest : public ::testing::Test {
 protected:
  WorkerReplicaTest() { machine_.write_available(std::uint64_t{1} << 20U); }

  void start(std::uint32_t ring_blocks = 16) {
    for (std::uint32_t rank = 0; rank < kNumRanks; ++rank) {
      ranks_.push_back(std::make_unique<Rank>(rank, ring_blocks, machine_.root));
    }
    await([&] {
      for (const auto& rank : ranks_) {
        if (rank->engine->num_slots() < kNumSlots) return false;
      }
      return true;
    });
    // That the ranks note what is ready.
    bind_and_save(next_plan());
    collect();
  }
  /// Block b of every rank holds the same: that of its number and a version.
  void write(std::uint32_t block, std::uint8_t version) {
    for (const auto& rank : ranks_) {
      for (std::size_t i = 0; i < kBlockBytes; ++i) {
        rank->block(block)[i] = static_cast<std::uint8_t>(version + block * 7 + i);
      }
    }
  }
  [[nodiscard]] static bool holds(Rank& rank, std::uint32_t block, std::uint32_t source,
                                  std::uint8_t version) {
    for (std::size_t i = 0; i < kBlockBytes; ++i) {
      if (rank.block(block)[i] != static_cast<std::uint8_t>(version + source * 7 + i)) return false;
    }
    return true;
  }
  [[nodiscard]] StepPlan next_plan() {
    StepPlan plan;
    plan.domain = kDomain;
    plan.seq = seq_ = seq_.next();
    return plan;
  }
  [[nodiscard]] static std::vector<BlockSlot> pairs(std::uint32_t block,
                                                    const std::vector<std::uint32_t>& slots) {
    std::vector<BlockSlot> blocks;
    for (const std::uint32_t slot : slots) blocks.push_back({BlockId(block++), SlotId(slot)});
    return blocks;
  }
  [[nodiscard]] static StoreOrder store(std::uint64_t transfer, std::vector<BlockSlot> blocks) {
    return {TransferId(transfer), kOwner, SlabClassId(0), StoreReadiness::kAfterForward,
            std::move(blocks)};
  }
  [[nodiscard]] static LoadOrder load(std::uint64_t transfer, std::vector<BlockSlot> blocks) {
    LoadOrder order{TransferId(transfer), kOwner, {}};
    order.parts.push_back({SlabClassId(0), std::move(blocks)});
    return order;
  }
  void bind(const StepPlan& plan) {
    const std::string bytes = encode(plan);
    for (const auto& rank : ranks_) rank->engine->bind(std::as_bytes(std::span(bytes)), 0);
  }
  void bind_and_save(const StepPlan& plan) {
    bind(plan);
    for (const auto& rank : ranks_) rank->engine->save(0);
  }
  void collect() {
    for (const auto& rank : ranks_) rank->collect();
  }
  void await(const std::function<bool()>& condition) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (!condition()) {
      ASSERT_LT(std::chrono::steady_clock::now(), end) << "hangs";
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }
  void await_stores(TransferId transfer) {
    await([&] {
      collect();
      return ranks_[0]->stores.contains(transfer) && ranks_[1]->stores.contains(transfer);
    });
  }
  [[nodiscard]] std::uint64_t stored_blocks(std::uint32_t rank) const {
    return ranks_[rank]->engine->stats().stored_blocks;
  }

  cpu_tier::MadeUpMachine machine_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  PlanSeq seq_;
};

TEST_F(WorkerReplicaTest, EachRankStoresItsPartAndAllLoadTheWhole) {
  start();
  for (std::uint32_t block = 0; block < 16; ++block) write(block, 1);
  std::vector<std::uint32_t> slots;
  for (std::uint32_t slot = 0; slot < 14; ++slot) slots.push_back(slot + 3);
  StepPlan plan = next_plan();
  plan.stores = {store(1, pairs(0, slots))};
  bind_and_save(plan);
  await_stores(TransferId(1));
  for (std::uint32_t rank = 0; rank < kNumRanks; ++rank) {
    EXPECT_EQ(ranks_[rank]->gathered[TransferId(1)], 14U);
    EXPECT_EQ(ranks_[rank]->stores[TransferId(1)], Outcome::kDone);
  }
  EXPECT_EQ(stored_blocks(0), 6U);  // Slots 3, 8 to 11 and 16.
  EXPECT_EQ(stored_blocks(1), 8U);
  plan = next_plan();
  plan.loads = {load(2, pairs(16, slots))};
  bind_and_save(plan);
  await([&] {
    collect();
    return ranks_[0]->loads.contains(TransferId(2)) && ranks_[1]->loads.contains(TransferId(2));
  });
  for (const auto& rank : ranks_) {
    EXPECT_EQ(rank->loads[TransferId(2)], Outcome::kDone);
    for (std::uint32_t i = 0; i < 14; ++i) EXPECT_TRUE(holds(*rank, 16 + i, i, 1)) << i;
  }
}

// The scheduler side counts every rank: one without a block of the store says that it is done.
TEST_F(WorkerReplicaTest, ARankWithoutABlockOfAStoreReportsItDoneAtOnce) {
  start();
  StepPlan plan = next_plan();
  plan.stores = {store(1, pairs(0, {4, 5, 6}))};
  ranks_[1]->valve.hold(Kind::kCopyD2H);
  bind_and_save(plan);
  collect();
  EXPECT_EQ(ranks_[0]->gathered[TransferId(1)], 3U);
  ASSERT_TRUE(ranks_[0]->stores.contains(TransferId(1)));
  EXPECT_EQ(ranks_[0]->stores[TransferId(1)], Outcome::kDone);
  EXPECT_EQ(ranks_[1]->gathered[TransferId(1)], 3U);
  EXPECT_FALSE(ranks_[1]->stores.contains(TransferId(1)));
  ranks_[1]->valve.open_all();
  await_stores(TransferId(1));
  EXPECT_EQ(stored_blocks(0), 0U);
}

struct PrefixCase {
  const char* name;
  std::vector<std::uint32_t> slots;
  /// That each rank counts, with a ring of two blocks whose link is held.
  std::uint32_t of_rank_0;
  std::uint32_t of_rank_1;
};

class WorkerReplicaPrefixTest : public WorkerReplicaTest,
                                public ::testing::WithParamInterface<PrefixCase> {};

TEST_P(WorkerReplicaPrefixTest, ARankCountsUpToItsFirstBlockThatItsRingHadNoRoomFor) {
  start(2);
  for (const auto& rank : ranks_) rank->valve.hold(Kind::kCopyD2H);
  for (std::uint32_t block = 0; block < 16; ++block) write(block, 3);
  StepPlan plan = next_plan();
  plan.stores = {store(1, pairs(0, GetParam().slots))};
  bind_and_save(plan);
  collect();
  EXPECT_EQ(ranks_[0]->gathered[TransferId(1)], GetParam().of_rank_0);
  EXPECT_EQ(ranks_[1]->gathered[TransferId(1)], GetParam().of_rank_1);
  // What it counts and gathered itself it ends later; what only others gathered, at once; and what
  // it counts nothing of is ended by that.
  for (std::uint32_t rank = 0; rank < kNumRanks; ++rank) {
    const std::uint32_t prefix = ranks_[rank]->gathered[TransferId(1)];
    bool has_own = false;
    for (std::uint32_t i = 0; i < prefix; ++i) has_own |= is_home(rank, GetParam().slots[i]);
    EXPECT_EQ(ranks_[rank]->stores.contains(TransferId(1)), prefix > 0 && !has_own) << rank;
  }
  for (const auto& rank : ranks_) rank->valve.open_all();
  await([&] {
    collect();
    bool all = true;
    for (const auto& rank : ranks_) {
      all &= rank->gathered[TransferId(1)] == 0 || rank->stores.contains(TransferId(1));
    }
    return all;
  });
  for (const auto& rank : ranks_) {
    if (rank->stores.contains(TransferId(1))) {
      EXPECT_EQ(rank->stores[TransferId(1)], Outcome::kDone);
    }
  }
  // What all count is in the arena, whoever stored it.
  const std::uint32_t least = std::min(GetParam().of_rank_0, GetParam().of_rank_1);
  if (least == 0) return;
  plan = next_plan();
  plan.loads = {load(2, pairs(16, {GetParam().slots.begin(), GetParam().slots.begin() + least}))};
  bind_and_save(plan);
  await([&] {
    collect();
    return ranks_[0]->loads.contains(TransferId(2)) && ranks_[1]->loads.contains(TransferId(2));
  });
  for (const auto& rank : ranks_) {
    for (std::uint32_t i = 0; i < least; ++i) EXPECT_TRUE(holds(*rank, 16 + i, i, 3)) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(
    , WorkerReplicaPrefixTest,
    ::testing::Values(PrefixCase{"Alternating", {0, 4, 1, 5, 2, 6, 3, 7}, 4, 5},
                      PrefixCase{"OneAfterTheOther", {0, 1, 2, 3, 4, 5, 6, 7}, 2, 6},
                      PrefixCase{"OwnLast", {4, 5, 6, 7, 0, 1}, 6, 2},
                      PrefixCase{"AllOfOne", {8, 9, 10, 11}, 2, 4},
                      PrefixCase{"AllFits", {0, 4, 1, 5}, 4, 4}),
    [](const auto& of) { return std::string(of.param.name); });

TEST_F(WorkerReplicaTest, WhatDoesNotFitLaterStopsARankAtItsOwnFirstBlock) {
  start(2);
  ranks_[0]->valve.hold(Kind::kCopyD2H);
  StepPlan plan = next_plan();
  // The first store takes all of rank 0's ring.
  plan.stores = {store(1, pairs(0, {0, 1})), store(2, pairs(2, {2, 4})),
                 store(3, pairs(4, {5, 3}))};
  bind_and_save(plan);
  collect();
  EXPECT_EQ(ranks_[0]->gathered[TransferId(1)], 2U);
  // Nothing: ended by that, and by nothing else.
  EXPECT_EQ(ranks_[0]->gathered[TransferId(2)], 0U);
  EXPECT_FALSE(ranks_[0]->stores.contains(TransferId(2)));
  // The other rank's block only.
  EXPECT_EQ(ranks_[0]->gathered[TransferId(3)], 1U);
  EXPECT_TRUE(ranks_[0]->stores.contains(TransferId(3)));
  EXPECT_EQ(ranks_[1]->gathered[TransferId(2)], 2U);
  EXPECT_EQ(ranks_[1]->gathered[TransferId(3)], 2U);
}

TEST_F(WorkerReplicaTest, AStoreCancelledWhileOneRankIsStoppedEndsOnEveryRank) {
  start();
  ranks_[1]->valve.hold(Kind::kCopyD2H);
  StepPlan plan = next_plan();
  plan.stores = {store(1, pairs(0, {0, 1, 4, 5, 6, 7})), store(2, pairs(6, {2, 3}))};
  bind_and_save(plan);
  await([&] {
    collect();
    return ranks_[0]->stores.contains(TransferId(1));
  });
  plan = next_plan();
  // The second one has nothing on rank 1, which has ended it already.
  plan.cancels = {TransferId(1), TransferId(2)};
  bind_and_save(plan);
  collect();
  EXPECT_FALSE(ranks_[1]->stores.contains(TransferId(1)));
  EXPECT_EQ(ranks_[1]->stores[TransferId(2)], Outcome::kDone);
  ranks_[1]->valve.open_all();
  await_stores(TransferId(1));
  EXPECT_EQ(ranks_[0]->stores[TransferId(1)], Outcome::kDone);
}

TEST_F(WorkerReplicaTest, AStepThatIsNotSavedStoresNothingOnTheHomesAndOthersAddNothing) {
  start();
  StepPlan plan = next_plan();
  plan.stores = {store(1, pairs(0, {0, 1, 4}))};
  bind(plan);
  bind_and_save(next_plan());
  collect();
  EXPECT_EQ(ranks_[0]->gathered[TransferId(1)], 0U);
  EXPECT_EQ(ranks_[1]->gathered[TransferId(1)], 2U);
  EXPECT_TRUE(ranks_[1]->stores.contains(TransferId(1)));
  EXPECT_EQ(stored_blocks(0) + stored_blocks(1), 0U);
}

TEST_F(WorkerReplicaTest, ItsTextSaysWhoSharesIt) {
  start();
  EXPECT_NE(ranks_[1]->engine->arena_text().find("shared with 1 other rank"), std::string::npos)
      << ranks_[1]->engine->arena_text();
}

}  // namespace
}  // namespace kvferry::connector
