// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/error.hpp"
#include "kvferry/connector/wire/step_plan.hpp"
#include "kvferry/connector/wire/step_report.hpp"
#include "kvferry/connector/worker/worker_engine.hpp"
#include "kvferry/gpu/host_link.hpp"
#include "kvferry/recorder/recorder.hpp"

#include "borrowed_device.hpp"
#include "expect_rank_recording.hpp"
#include "valve.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
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
  static constexpr std::uint64_t kRingBytes = std::uint64_t{1} << 20U;
  static constexpr DomainId kDomain{5};
  static constexpr Owner kOwner{kDomain, RequestId(1), Generation(1)};

  struct Setup {
    std::uint32_t num_slots = kNumSlots;  ///< Chunks.
    /// With a second one: of blocks that have the first fragment only.
    std::vector<std::uint32_t> slots_per_chunk{1};
    std::vector<std::uint64_t> slot_bytes = {};
    cpu_tier::ArenaOptions arena = {};
    std::optional<std::uint32_t> numa_node = std::nullopt;
    std::uint64_t pinning_bandwidth_limit = 0;
    cpu_tier::ReplicaGroup replicas = {};
    std::optional<SharedTierWish> shared = std::nullopt;
    std::uint32_t ring_blocks = 16;
    std::uint64_t piece_blocks = 1;
    std::uint64_t in_flight_blocks = 64;
    std::chrono::nanoseconds transfer_timeout = std::chrono::minutes(5);
    /// kThread: what is submitted to the compute stream waits there.
    enum class Compute : std::uint8_t { kInline, kThread } compute = Compute::kInline;
  };

  WorkerTest() { start({}); }
  ~WorkerTest() override {
    valve_.open_all();
    expect_rank_recording(recorded());
  }

  void start(const Setup& setup) {
    valve_.open_all();
    engine_.reset();
    seq_ = PlanSeq();
    const auto base = reinterpret_cast<std::uintptr_t>(pool_.data());
    WorkerOptions options;
    options.rank = RankId(1);
    options.world_size = 2;
    options.num_chunks = setup.num_slots;
    options.slots_per_chunk = setup.slots_per_chunk;
    options.slot_bytes = setup.slot_bytes;
    options.arena = setup.arena;
    options.numa_node = setup.numa_node;
    options.pinning_bandwidth_limit = setup.pinning_bandwidth_limit;
    options.replicas = setup.replicas;
    options.shared = setup.shared;
    options.transfer.staging_bytes = setup.ring_blocks * kBlockBytes;
    options.transfer.piece_bytes = setup.piece_blocks * kBlockBytes;
    options.transfer.max_in_flight_bytes = setup.in_flight_blocks * kBlockBytes;
    options.transfer_timeout = setup.transfer_timeout;
    recorder_ = std::make_shared<recorder::Recorder>(
        kRingBytes, recorder::RecordedBy{"1.0", kWireVersion, "rank 1\n"});
    options.recorder = recorder_;
    device_ = gpu::make_host_device(
        {}, [held = shared_](const gpu::OperationInfo& info) { return held->valve.pass(info); });
    std::unique_ptr<gpu::Device> borrowed;
    if (setup.compute == Setup::Compute::kThread) {
      borrowed = std::make_unique<transfer::ThreadedComputeDevice>(*device_);
    } else {
      borrowed = std::make_unique<transfer::BorrowedDevice>(*device_);
    }
    const gpu::Fragment first{.base = base, .block_stride_bytes = 64, .bytes = 48};
    const gpu::Fragment second{
        .base = base + kNumBlocks * 64, .block_stride_bytes = 96, .bytes = 80};
    std::vector geometries{gpu::make_block_geometry({first, second}, kNumBlocks)};
    if (setup.slots_per_chunk.size() > 1) {
      geometries.push_back(gpu::make_block_geometry({first}, kNumBlocks));
    }
    engine_ = std::make_unique<WorkerEngine>(std::move(borrowed), std::move(geometries), options);
  }

  std::uint8_t* at(std::uint32_t block, std::size_t offset) {
    return offset < 48 ? &pool_[block * 64 + offset]
                       : &pool_[kNumBlocks * 64 + block * 96 + offset - 48];
  }
  static std::uint8_t content(std::uint8_t version, std::size_t offset) {
    return static_cast<std::uint8_t>(version * 37 + offset * 3 + (offset >> 5));
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
    return {TransferId(transfer), kOwner, SlabClassId(0), readiness, blocks};
  }
  [[nodiscard]] static LoadOrder load(std::uint64_t transfer,
                                      const std::vector<BlockSlot>& blocks) {
    LoadOrder order{TransferId(transfer), kOwner, {}};
    if (!blocks.empty()) order.parts.push_back({SlabClassId(0), blocks});
    return order;
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
  /// Collects once into `announced_` and `report_`.
  void collect() {
    for (std::string& id : engine_->collect()) announced_.push_back(std::move(id));
    const StepReport report = take_report();
    if (report.topology) report_.topology = report.topology;
    report_.gathered.insert(report_.gathered.end(), report.gathered.begin(), report.gathered.end());
    report_.stores.insert(report_.stores.end(), report.stores.begin(), report.stores.end());
    report_.loads.insert(report_.loads.end(), report.loads.begin(), report.loads.end());
    report_.announced.insert(report_.announced.end(), report.announced.begin(),
                             report.announced.end());
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
  }
  /// The message of the ProtocolError that `plan` gives; nothing of it may have happened.
  std::string refusal(const StepPlan& plan) {
    try {
      bind(plan);
    } catch (const ProtocolError& error) {
      EXPECT_FALSE(engine_->waiting());
      EXPECT_TRUE(engine_->collect().empty());
      return error.what();
    }
    ADD_FAILURE() << "no ProtocolError";
    return {};
  }
  void expect_refused(const StepPlan& plan, const std::vector<std::string>& parts) {
    const std::string message = refusal(plan);
    for (const std::string& part : parts) {
      EXPECT_NE(message.find(part), std::string::npos) << part << " is not in: " << message;
    }
  }
  [[nodiscard]] recorder::Recording recorded() const {
    return recorder::Recording::from_bytes(recorder_->bytes());
  }
  static void await(const std::function<bool()>& condition) {
    const auto start = std::chrono::steady_clock::now();
    while (!condition()) {
      ASSERT_LT(std::chrono::steady_clock::now() - start, std::chrono::minutes(2)) << "hangs";
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }

  /// Also the device's: of a lost one, operations may pass and write when the fixture is gone.
  struct Shared {
    transfer::Valve valve;
    std::vector<std::uint8_t> pool = std::vector<std::uint8_t>(kNumBlocks * (64 + 96));
  };
  std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
  transfer::Valve& valve_ = shared_->valve;
  std::vector<std::uint8_t>& pool_ = shared_->pool;
  PlanSeq seq_;
  std::vector<std::string> announced_;
  StepReport report_;
  std::unique_ptr<gpu::Device> device_;
  std::shared_ptr<recorder::Recorder> recorder_;
  std::unique_ptr<WorkerEngine> engine_;
};

}  // namespace kvferry::connector
