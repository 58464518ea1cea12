// SPDX-License-Identifier: Apache-2.0
#include "engine_rig.hpp"

#include "kvferry/base/deadline.hpp"
#include "kvferry/base/error.hpp"

#include "borrowed_device.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <span>
#include <thread>
#include <utility>

namespace kvferry::fault {
namespace {

constexpr connector::DomainId kDomain{3};
constexpr std::uint32_t kWorldSize = 2;
constexpr std::chrono::nanoseconds kHang = std::chrono::minutes(2);

}  // namespace

EngineRig::EngineRig() {
  for (std::uint32_t number = 0; number < kWorldSize; ++number) {
    // Two fragments with gaps: 24 of every 32 bytes, and 40 of every 48 behind them.
    Rank rank{std::vector<std::uint8_t>(kNumBlocks * (32 + 48)), gpu::make_host_device(), nullptr};
    const auto base = reinterpret_cast<std::uintptr_t>(rank.pool.data());
    connector::WorkerOptions options;
    options.rank = RankId(number);
    options.world_size = kWorldSize;
    options.num_chunks = kNumSlots;
    options.transfer.staging_bytes = kRingBlocks * kBlockBytes;
    options.transfer.piece_bytes = 2 * kBlockBytes;
    options.transfer.max_in_flight_bytes = 4 * kBlockBytes;
    options.transfer_timeout = kHang;
    try {
      rank.engine = std::make_unique<connector::WorkerEngine>(
          std::make_unique<transfer::BorrowedDevice>(*rank.device),
          gpu::make_block_geometry(
              {{.base = base, .block_stride_bytes = 32, .bytes = 24},
               {.base = base + kNumBlocks * 32, .block_stride_bytes = 48, .bytes = 40}},
              kNumBlocks),
          options);
    } catch (const std::exception&) {
      EXPECT_EQ(gpu::host_device_usage(*rank.device), gpu::HostDeviceUsage{});
      throw;
    }
    ranks_.push_back(std::move(rank));
  }
  connector::SchedulerOptions options;
  options.domain = kDomain;
  options.world_size = kWorldSize;
  options.hash_tokens = kBlockTokens;
  options.num_blocks = kNumBlocks;
  options.classes = {{1, {kBlockBytes, kBlockBytes}}};
  options.max_chunks = kNumSlots;
  scheduler_ = std::make_unique<connector::SchedulerEngine>(std::move(options));
  scheduler_->set_pool(&pool_);
}

EngineRig::~EngineRig() {
  for (Rank& rank : ranks_) {
    EXPECT_NO_THROW(rank.engine->close()) << "hangs";
    const bool in_doubt = rank.engine->stats().ring_used_bytes != 0;
    rank.engine.reset();
    // A ring in doubt is kept until the process ends, and only that.
    const gpu::HostDeviceUsage expected{.num_buffers = in_doubt ? 1U : 0U};
    EXPECT_EQ(gpu::host_device_usage(*rank.device), expected);
  }
}

// ---- memory ----

std::uint8_t EngineRig::content(std::size_t rank, std::uint64_t number, std::uint64_t offset) {
  const std::uint64_t mixed =
      (number * 0x9e3779b97f4a7c15U + 2 * offset + rank) * 0xbf58476d1ce4e5b9U;
  return static_cast<std::uint8_t>(mixed >> 56);
}

std::uint8_t& EngineRig::byte(Rank& rank, BlockId block, std::uint64_t offset) {
  const std::uint64_t at = block.value();
  return rank.pool[offset < 24 ? at * 32 + offset : kNumBlocks * 32 + at * 48 + offset - 24];
}

void EngineRig::write(std::size_t rank, BlockId block, std::uint64_t number) {
  for (std::uint64_t i = 0; i < kBlockBytes; ++i) {
    byte(ranks_[rank], block, i) = content(rank, number, i);
  }
}

bool EngineRig::holds(std::size_t rank, BlockId block, std::uint64_t number) {
  for (std::uint64_t i = 0; i < kBlockBytes; ++i) {
    if (byte(ranks_[rank], block, i) != content(rank, number, i)) return false;
  }
  return true;
}

std::vector<BlockId> EngineRig::allocate(std::size_t count) {
  std::vector<BlockId> blocks;
  for (std::size_t i = 0; i < count; ++i) {
    blocks.emplace_back(next_block_++);
    EXPECT_LT(next_block_, kNumBlocks);
  }
  return blocks;
}

// ---- requests ----

void EngineRig::prefill(const std::string& id, const Numbers& numbers) {
  Request& request = requests_[id];
  request.hashes = std::make_shared<connector::FakeHashes>(numbers);
  request.num_blocks = static_cast<std::uint32_t>(numbers.size());
  scheduler_->on_request(id, request.hashes);
  const std::vector<BlockId> table = allocate(numbers.size());
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    pool_.cache(table[i].value(), numbers[i]);
    writes_.push_back({table[i], numbers[i]});
  }
  scheduler_->on_scheduled(id, connector::TableUpdate::kReplace, table, 0,
                           request.num_blocks * kBlockTokens);
}

void EngineRig::decode(const std::string& id, std::uint64_t number) {
  Request& request = requests_.at(id);
  request.hashes->append(number);
  const std::vector<BlockId> block = allocate(1);
  pool_.cache(block[0].value(), number);
  writes_.push_back({block[0], number});
  scheduler_->on_scheduled(id, connector::TableUpdate::kAppend, block,
                           request.num_blocks++ * kBlockTokens, kBlockTokens);
}

std::uint32_t EngineRig::begin_load(const std::string& id, const Numbers& numbers) {
  scheduler_->on_request(id, std::make_shared<connector::FakeHashes>(numbers));
  const auto num_tokens = static_cast<std::uint32_t>(numbers.size()) * kBlockTokens + 1;
  const std::uint32_t found = scheduler_->lookup(id, 0, num_tokens).value_or(0);
  if (found == 0) {
    finish(id);
    return 0;
  }
  Load load{allocate(numbers.size() + 1), numbers, false};
  load.numbers.resize(found / kBlockTokens);
  scheduler_->on_allocated(id, load.table, found);
  loads_.emplace(id, std::move(load));
  return found / kBlockTokens;
}

void EngineRig::abort_load(const std::string& id) {
  finish(id);
  loads_.at(id).aborted = true;
}

// ---- steps ----

void EngineRig::step(const std::function<void()>& before_fold) {
  const std::string plan = scheduler_->finish_plan();
  const std::vector<Write> writes = std::exchange(writes_, {});
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    ranks_[rank].engine->bind(std::as_bytes(std::span(plan)), 0);
    for (const auto& [block, number] : writes) write(rank, block, number);
    ranks_[rank].engine->save(0);
  }
  collect_and_fold(before_fold);
}

void EngineRig::collect_and_fold(const std::function<void()>& before_fold) {
  if (before_fold) before_fold();
  std::map<std::string, std::uint32_t> announced;
  std::vector<std::string> reports;
  for (Rank& rank : ranks_) {
    for (const std::string& id : rank.engine->collect()) ++announced[id];
    std::string report = rank.engine->take_report();
    if (!report.empty()) reports.push_back(std::move(report));
  }
  std::vector<std::span<const std::byte>> bytes;
  for (const std::string& report : reports) bytes.push_back(std::as_bytes(std::span(report)));
  const connector::FoldResult result = scheduler_->fold(bytes);
  EXPECT_TRUE(result.stale.empty()) << "no id is used twice here";
  for (const std::string& id : result.ended) {
    const auto found = announced.find(id);
    tell(id, found == announced.end() ? 0 : found->second);
    if (found != announced.end()) announced.erase(found);
  }
  for (const auto& [id, count] : announced) {
    ADD_FAILURE() << id << " was announced " << count << " times and not told";
  }
  EXPECT_TRUE(view().tier.conserved());
}

void EngineRig::tell(const std::string& id, std::uint32_t num_announced) {
  const auto found = loads_.find(id);
  // vllm#43226: the engine asserts exactly this.
  ASSERT_NE(found, loads_.end()) << id << " was told and does not wait";
  const Load load = std::move(found->second);
  loads_.erase(found);
  ++num_told_;
  EXPECT_TRUE(num_announced == 0 || num_announced == kWorldSize) << id;
  if (num_announced != 0) {
    ++num_told_failed_;
  } else if (!load.aborted) {
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      for (std::size_t i = 0; i < load.numbers.size(); ++i) {
        EXPECT_TRUE(holds(rank, load.table[i], load.numbers[i]))
            << "rank " << rank << " has something else than block " << load.numbers[i] << " of "
            << id << ", which was told as loaded";
      }
    }
  }
  if (!load.aborted) finish(id);
}

void EngineRig::settle() {
  const Deadline deadline(kHang);
  do {
    step();
    const connector::SchedulerSnapshot now = view();
    const bool idle = now.num_stores_in_flight + now.num_loads_in_flight == 0;
    if (idle && now.num_backlog == 0) break;
    if (has_ring_in_doubt()) reallocate_all();
    ASSERT_FALSE(deadline.passed())
        << "hangs: " << now.num_stores_in_flight << " stores and " << now.num_loads_in_flight
        << " loads, " << now.num_backlog << " in the backlog";
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  } while (!::testing::Test::HasFailure());
  EXPECT_TRUE(loads_.empty()) << loads_.begin()->first << " was never told";
}

void EngineRig::register_ranks() {
  step();
  EXPECT_EQ(view().ready_ranks, kWorldSize);
  EXPECT_EQ(view().tier.num_slots, kNumSlots);
}

void EngineRig::close() {
  for (Rank& rank : ranks_) rank.engine->close();
  collect_and_fold({});
}

bool EngineRig::has_ring_in_doubt() const {
  return std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) {
    const transfer::TransferStats stats = rank.engine->stats();
    return stats.queued_bytes + stats.in_flight_bytes == 0 && stats.ring_used_bytes != 0;
  });
}

void EngineRig::reallocate_all() {
  for (std::uint32_t block = 0; block < kNumBlocks; ++block) pool_.reallocate(block);
}

}  // namespace kvferry::fault
