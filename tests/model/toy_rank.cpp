// SPDX-License-Identifier: Apache-2.0
#include "toy_rank.hpp"

#include "kvferry/base/mixed_bits.hpp"
#include "kvferry/connector/wire/step_plan.hpp"

#include "borrowed_device.hpp"
#include "failing_device.hpp"
#include "test_backend.hpp"

#include <atomic>
#include <chrono>
#include <span>
#include <utility>

namespace kvferry::connector {
namespace {

template <class T>
std::span<std::uint8_t> bytes_of(T& value) {
  return {reinterpret_cast<std::uint8_t*>(&value), sizeof(T)};
}

gpu::OperationInterceptor dawdling_scatters(std::uint64_t seed) {
  constexpr std::uint64_t kMostNanoseconds = 100'000;
  const auto num_scatters = std::make_shared<std::atomic<std::uint64_t>>(seed);
  return [num_scatters](const gpu::OperationInfo& info) {
    gpu::OperationVerdict verdict;
    if (info.kind == gpu::OperationInfo::Kind::kScatter) {
      verdict.delay = std::chrono::nanoseconds(mixed_bits(++*num_scatters) % kMostNanoseconds);
    }
    return verdict;
  };
}

std::unique_ptr<gpu::Device> make_device(const ToyRankOptions& options) {
  if (options.backend != "host") return gpu::make_test_device(options.backend);
  if (options.load_staging_blocks == 0) return gpu::make_host_device(options.link);
  return gpu::make_host_device(options.link, dawdling_scatters(options.link.seed));
}

constexpr std::uint64_t kRingBytes = std::uint64_t{1} << 22U;

}  // namespace

ToyRank::ToyRank(const ToyRankOptions& options)
    : rank_(options.replicas.has_others() ? 0 : options.rank),
      num_blocks_(options.num_blocks),
      device_(make_device(options)),
      memory_(device_->allocate(std::size_t{num_blocks_} * (2 * kBlockTokens + 1) * 8)),
      access_(std::make_unique<gpu::DeviceAccess>(*device_, device_->view_stream(0))) {
  access_->fill(memory_->address(), 0, memory_->size_bytes());
  recorder_ = std::make_shared<recorder::Recorder>(
      kRingBytes, recorder::RecordedBy{"test", kWireVersion, "rank\n"});
  WorkerOptions worker;
  worker.recorder = recorder_;
  worker.rank = RankId(options.rank);
  worker.world_size = 2;
  worker.num_chunks = options.num_chunks;
  worker.slots_per_chunk = options.slots_per_chunk;
  worker.replicas = options.replicas;
  worker.arena.start_chunks = options.start_chunks;
  if (options.replicas.has_others() || options.start_chunks != 0)
    worker.arena.pinned_piece_bytes = 1;  // The least that pages allow.
  worker.transfer.staging_bytes = options.ring_blocks * kSlotBytes[0];
  worker.transfer.piece_bytes = 2 * kSlotBytes[0];
  worker.transfer.max_in_flight_bytes = 4 * kSlotBytes[0];
  if (options.load_staging_blocks != 0) {
    worker.transfer.copy_path = gpu::CopyPath::kStaged;
    worker.transfer.load_staging_bytes = options.load_staging_blocks * kSlotBytes[0];
  }
  const double fail_probability =
      device_->kind() == gpu::BackendKind::kHost ? 0 : options.link.fail_probability;
  const gpu::Fragment keys{
      .base = keys_of(0), .block_stride_bytes = kBlockTokens * 8, .bytes = kBlockTokens * 8};
  const gpu::Fragment values{.base = values_of(0),
                             .block_stride_bytes = (kBlockTokens + 1) * 8,
                             .bytes = kBlockTokens * 8};
  std::vector geometries{gpu::make_block_geometry({keys, values}, num_blocks_)};
  if (options.slots_per_chunk.size() > 1) {
    geometries.push_back(gpu::make_block_geometry({keys}, num_blocks_));
  }
  engine_ = std::make_unique<WorkerEngine>(
      std::make_unique<transfer::FailingDevice>(*device_, fail_probability, options.link.seed),
      std::move(geometries), worker);
}

void ToyRank::write(std::uint32_t block, std::uint32_t token, std::uint64_t kv,
                    SlabClassId slab_class) {
  seen_.clear();
  std::uint64_t key = mix(kv, 2 * rank_);
  access_->write(keys_of(block) + token * 8, bytes_of(key));
  if (slab_class != SlabClassId(0)) return;
  std::uint64_t value = mix(kv, 2 * rank_ + 1);
  access_->write(values_of(block) + token * 8, bytes_of(value));
}

bool ToyRank::holds(std::uint32_t block, std::uint32_t token, std::uint64_t kv,
                    SlabClassId slab_class) {
  const Block& found = look(block);
  // Of a block without values nothing is to be left of its last use.
  const std::uint64_t value = slab_class == SlabClassId(0) ? mix(kv, 2 * rank_ + 1) : 0;
  return found.keys[token] == mix(kv, 2 * rank_) && found.values[token] == value;
}

void ToyRank::clear(std::uint32_t block) {
  seen_.clear();
  access_->fill(keys_of(block), 0, sizeof(Block::keys));
  access_->fill(values_of(block), 0, sizeof(Block::values));
}

const ToyRank::Block& ToyRank::look(std::uint32_t block) {
  const auto [found, is_new] = seen_.try_emplace(block);
  if (is_new) {
    access_->read(keys_of(block), bytes_of(found->second.keys));
    access_->read(values_of(block), bytes_of(found->second.values));
  }
  return found->second;
}

}  // namespace kvferry::connector
