// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/connector/worker_engine.hpp"
#include "kvferry/gpu/host_link.hpp"

#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

namespace kvferry::connector {

inline constexpr std::uint32_t kBlockTokens = 4;

inline std::uint64_t mix(std::uint64_t a, std::uint64_t b) {
  std::uint64_t x = (a ^ (b + 0x9e3779b97f4a7c15U + (a << 6) + (a >> 2))) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31);
}

struct ToyRankOptions {
  std::uint32_t rank = 0;
  std::uint32_t num_blocks = 0;
  std::uint32_t num_slots = 0;
  std::uint32_t ring_blocks = 0;
  gpu::HostLinkOptions link;
};

/// A rank's KV memory, two numbers per token and rank, and the WorkerEngine on it.
class ToyRank {
 public:
  static constexpr std::uint64_t kSlotBytes = kBlockTokens * 16;

  explicit ToyRank(const ToyRankOptions& options)
      : rank_(options.rank),
        keys_(options.num_blocks * kBlockTokens),
        values_(options.num_blocks * (kBlockTokens + 1)) {
    const auto keys = reinterpret_cast<std::uintptr_t>(keys_.data());
    const auto values = reinterpret_cast<std::uintptr_t>(values_.data());
    WorkerOptions worker;
    worker.rank = RankId(rank_);
    worker.world_size = 2;
    worker.num_slots = options.num_slots;
    worker.transfer.staging_bytes = options.ring_blocks * kSlotBytes;
    worker.transfer.piece_bytes = 2 * kSlotBytes;
    worker.transfer.max_in_flight_bytes = 4 * kSlotBytes;
    engine_ = std::make_unique<WorkerEngine>(
        gpu::make_host_device(options.link),
        gpu::make_block_geometry(
            {{.base = keys, .block_stride_bytes = kBlockTokens * 8, .bytes = kBlockTokens * 8},
             {.base = values,
              .block_stride_bytes = (kBlockTokens + 1) * 8,
              .bytes = kBlockTokens * 8}},
            options.num_blocks),
        worker);
  }

  [[nodiscard]] WorkerEngine& engine() { return *engine_; }
  void write(std::uint32_t block, std::uint32_t token, std::uint64_t kv) {
    keys_[block * kBlockTokens + token] = mix(kv, 2 * rank_);
    values_[block * (kBlockTokens + 1) + token] = mix(kv, 2 * rank_ + 1);
  }
  [[nodiscard]] bool holds(std::uint32_t block, std::uint32_t token, std::uint64_t kv) const {
    return keys_[block * kBlockTokens + token] == mix(kv, 2 * rank_) &&
           values_[block * (kBlockTokens + 1) + token] == mix(kv, 2 * rank_ + 1);
  }
  /// As an engine zeroes a block that it hands out.
  void clear(std::uint32_t block) {
    for (std::uint32_t token = 0; token < kBlockTokens; ++token) {
      keys_[block * kBlockTokens + token] = 0;
      values_[block * (kBlockTokens + 1) + token] = 0;
    }
  }

 private:
  std::uint32_t rank_;
  std::vector<std::uint64_t> keys_;
  std::vector<std::uint64_t> values_;
  std::unique_ptr<WorkerEngine> engine_;
};

}  // namespace kvferry::connector
