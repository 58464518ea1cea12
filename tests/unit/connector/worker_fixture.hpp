// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/connector/step_plan.hpp"
#include "kvferry/connector/step_report.hpp"
#include "kvferry/connector/worker_engine.hpp"
#include "kvferry/gpu/host_link.hpp"

#include "valve.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace kvferry::connector {

/// A WorkerEngine on a host device whose link the test can hold and fail, and an engine's pool of
/// blocks of two fragments. Rank 1 of 2, so that a mixed-up rank shows.
class WorkerTest : public ::testing::Test {
 protected:
  using Kind = gpu::OperationInfo::Kind;
  static constexpr std::uint32_t kNumBlocks = 32;
  static constexpr std::uint32_t kNumSlots = 64;
  static constexpr std::uint64_t kBlockBytes = 48 + 80;
  static constexpr DomainId kDomain{5};
  static constexpr Owner kOwner{kDomain, RequestId(1), Generation(1)};

  struct Setup {
    std::uint32_t ring_blocks = 16;
    std::uint64_t piece_blocks = 1;
    std::uint64_t in_flight_blocks = 64;
    std::chrono::nanoseconds transfer_timeout = std::chrono::minutes(5);
  };

  WorkerTest() : pool_(kNumBlocks * (64 + 96)) { start({}); }
  ~WorkerTest() override { valve_.open_all(); }

  void start(const Setup& setup) {
    valve_.open_all();
    engine_.reset();
    seq_ = PlanSeq();
    const auto base = reinterpret_cast<std::uintptr_t>(pool_.data());
    WorkerOptions options;
    options.rank = RankId(1);
    options.world_size = 2;
    options.num_slots = kNumSlots;
    options.transfer.staging_bytes = setup.ring_blocks * kBlockBytes;
    options.transfer.piece_bytes = setup.piece_blocks * kBlockBytes;
    options.transfer.max_in_flight_bytes = setup.in_flight_blocks * kBlockBytes;
    options.transfer_timeout = setup.transfer_timeout;
    engine_ = std::make_unique<WorkerEngine>(
        gpu::make_host_device({},
                              [this](const gpu::OperationInfo& info) { return valve_.pass(info); }),
        gpu::make_block_geometry(
            {{.base = base, .block_stride_bytes = 64, .bytes = 48},
             {.base = base + kNumBlocks * 64, .block_stride_bytes = 96, .bytes = 80}},
            kNumBlocks),
        options);
  }

  void write(std::uint32_t block, std::uint8_t version) {
    for (std::size_t i = 0; i < kBlockBytes; ++i) *at(block, i) = content(version, i);
  }
  void expect_content(std::uint32_t block, std::uint8_t version) {
    for (std::size_t i = 0; i < kBlockBytes; ++i) {
      ASSERT_EQ(*at(block, i), content(version, i)) << "byte " << i << " of block " << block;
    }
  }

  /// The next plan, empty.
  [[nodiscard]] StepPlan next_plan() {
    StepPlan plan;
    plan.domain = kDomain;
    plan.seq = seq_ = seq_.next();
    return plan;
  }
  [[nodiscard]] static StoreOrder store(std::uint64_t transfer,
                                        const std::vector<BlockSlot>& blocks,
                                        StoreReadiness readiness = StoreReadiness::kAfterForward) {
    return {TransferId(transfer), kOwner, GroupId(0), readiness, blocks};
  }
  [[nodiscard]] static LoadOrder load(std::uint64_t transfer, const std::string& id,
                                      const std::vector<BlockSlot>& blocks) {
    return {TransferId(transfer), kOwner, id, false, GroupId(0), blocks};
  }
  /// `count` blocks from `block` on and slots from `slot` on.
  [[nodiscard]] static std::vector<BlockSlot> pairs(std::uint32_t block, std::uint32_t slot,
                                                    std::uint32_t count) {
    std::vector<BlockSlot> blocks;
    for (std::uint32_t i = 0; i < count; ++i) {
      blocks.push_back({BlockId(block + i), SlotId(slot + i)});
    }
    return blocks;
  }

  void bind(const StepPlan& plan) {
    const std::string bytes = encode(plan);
    engine_->bind(std::as_bytes(std::span(bytes)), 0);
  }
  void bind_and_save(const StepPlan& plan) {
    bind(plan);
    engine_->save(0);
  }
  [[nodiscard]] StepReport take_report() {
    const std::string bytes = engine_->take_report();
    return bytes.empty() ? StepReport{} : decode_report(std::as_bytes(std::span(bytes)));
  }
  /// Collects once into `ended_` and `report_`.
  void collect() {
    EndedLoads loads = engine_->collect();
    std::move(loads.ended.begin(), loads.ended.end(), std::back_inserter(ended_.ended));
    std::move(loads.failed.begin(), loads.failed.end(), std::back_inserter(ended_.failed));
    const StepReport report = take_report();
    if (report.topology) report_.topology = report.topology;
    report_.gathered.insert(report_.gathered.end(), report.gathered.begin(), report.gathered.end());
    report_.stores.insert(report_.stores.end(), report.stores.begin(), report.stores.end());
    report_.loads.insert(report_.loads.end(), report.loads.begin(), report.loads.end());
  }
  /// Collects until so many stores and loads have ended in all, and once more.
  void collect_ends(std::size_t num_stores, std::size_t num_loads) {
    await([&] {
      collect();
      return report_.stores.size() >= num_stores && report_.loads.size() >= num_loads;
    });
    collect();
    EXPECT_EQ(report_.stores.size(), num_stores);
    EXPECT_EQ(report_.loads.size(), num_loads);
    EXPECT_EQ(ended_.ended.size(), num_loads);
  }
  static void await(const std::function<bool()>& condition) {
    const auto start = std::chrono::steady_clock::now();
    while (!condition()) {
      ASSERT_LT(std::chrono::steady_clock::now() - start, std::chrono::minutes(2)) << "hangs";
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }

  transfer::Valve valve_;
  std::vector<std::uint8_t> pool_;
  PlanSeq seq_;
  EndedLoads ended_;
  StepReport report_;
  std::unique_ptr<WorkerEngine> engine_;

 private:
  std::uint8_t* at(std::uint32_t block, std::size_t offset) {
    return offset < 48 ? &pool_[block * 64 + offset]
                       : &pool_[kNumBlocks * 64 + block * 96 + offset - 48];
  }
  static std::uint8_t content(std::uint8_t version, std::size_t offset) {
    return static_cast<std::uint8_t>(version * 37 + offset * 3 + (offset >> 5));
  }
};

}  // namespace kvferry::connector
