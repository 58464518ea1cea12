// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/connector/worker/worker_engine.hpp"
#include "kvferry/gpu/host_link.hpp"
#include "kvferry/recorder/recorder.hpp"
#include "kvferry/recorder/recording.hpp"

#include "device_access.hpp"

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

namespace kvferry::connector {

inline constexpr std::uint32_t kBlockTokens = 4;

inline std::uint64_t mix(std::uint64_t a, std::uint64_t b) {
  std::uint64_t x = (a ^ (b + 0x9e3779b97f4a7c15U + (a << 6) + (a >> 2))) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31);
}

/// A token's KV in a KV cache group, from what it is in the first.
inline std::uint64_t of_group(std::uint64_t kv, std::uint32_t group) {
  return group == 0 ? kv : mix(kv, 1000 + group);
}

struct ToyRankOptions {
  std::uint32_t rank = 0;
  std::uint32_t num_blocks = 0;
  std::uint32_t num_chunks = 0;
  /// By slab class, at most two: whole blocks, and blocks of keys without values.
  std::vector<std::uint32_t> slots_per_chunk{1};
  /// What comes and goes together is as little as pages allow, and the tier begins with so many
  /// chunks; 0: it does not change.
  std::uint32_t start_chunks = 0;
  std::uint32_t ring_blocks = 0;
  /// 0: loads are not staged. Else all are that fit, and on the host back end their scatters take
  /// more or less time, so that they end in any order.
  std::uint32_t load_staging_blocks = 0;
  /// If they are shared, every rank has the same KV.
  cpu_tier::ReplicaGroup replicas;
  /// test_backend.hpp. The link is simulated on the host back end; on the others its failures are
  /// refused copies, and its delays the device's own.
  std::string backend;
  gpu::HostLinkOptions link;
};

/// A rank's KV memory, two numbers per token and rank, and the WorkerEngine on it. The compute
/// stream is the default one.
class ToyRank {
 public:
  /// By slab class.
  static constexpr std::array<std::uint64_t, 2> kSlotBytes{kBlockTokens * 16, kBlockTokens * 8};

  explicit ToyRank(const ToyRankOptions& options);

  [[nodiscard]] WorkerEngine& engine() {
    seen_.clear();
    return *engine_;
  }
  [[nodiscard]] recorder::Recording recorded() const {
    return recorder::Recording::from_bytes(recorder_->bytes());
  }
  /// Of a block of that slab class.
  void write(std::uint32_t block, std::uint32_t token, std::uint64_t kv, SlabClassId slab_class);
  [[nodiscard]] bool holds(std::uint32_t block, std::uint32_t token, std::uint64_t kv,
                           SlabClassId slab_class);
  /// As an engine zeroes a block that it hands out.
  void clear(std::uint32_t block);

 private:
  struct Block {
    std::array<std::uint64_t, kBlockTokens> keys{};
    std::array<std::uint64_t, kBlockTokens> values{};
  };

  /// Values lie behind all keys, with a gap behind each block's.
  [[nodiscard]] std::uintptr_t keys_of(std::uint32_t block) const {
    return memory_->address() + std::size_t{block} * kBlockTokens * 8;
  }
  [[nodiscard]] std::uintptr_t values_of(std::uint32_t block) const {
    return keys_of(num_blocks_) + std::size_t{block} * (kBlockTokens + 1) * 8;
  }
  [[nodiscard]] const Block& look(std::uint32_t block);

  /// Whose KV it has.
  std::uint32_t rank_;
  std::uint32_t num_blocks_;
  std::unique_ptr<gpu::Device> device_;
  std::unique_ptr<gpu::DeviceBuffer> memory_;
  std::unique_ptr<gpu::DeviceAccess> access_;
  /// Blocks as read since the last write or word of the engine.
  std::map<std::uint32_t, Block> seen_;
  std::shared_ptr<recorder::Recorder> recorder_;
  std::unique_ptr<WorkerEngine> engine_;
};

}  // namespace kvferry::connector
