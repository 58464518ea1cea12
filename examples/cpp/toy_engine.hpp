// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/ids.hpp"
#include "kvferry/connector/scheduler/engine_view.hpp"
#include "kvferry/gpu/block_geometry.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

/// What an inference engine would bring: a KV cache in device memory, and content hashes of blocks.

inline constexpr std::uint32_t kBlockTokens = 16;
inline constexpr std::uint32_t kNumLayers = 4;
/// Of one block in one layer: K and V of 16 tokens, 8 heads of 64 numbers of 2 bytes.
inline constexpr std::uint64_t kLayerBytes = std::uint64_t{2} * kBlockTokens * 8 * 64 * 2;
inline constexpr std::uint64_t kBlockBytes = kNumLayers * kLayerBytes;

/// The KV cache: one tensor per layer, each of `num_blocks` blocks. The host back end's device
/// memory is ordinary memory.
class KvCache {
 public:
  explicit KvCache(std::uint32_t num_blocks);

  /// Where the blocks lie: a fragment per layer.
  [[nodiscard]] kvferry::gpu::BlockGeometry geometry() const;
  /// Stands for a forward pass that computes the block with this content hash.
  void compute(kvferry::BlockId block, std::uint64_t content);
  /// Whether the block is, byte for byte, what compute() wrote.
  [[nodiscard]] bool holds(kvferry::BlockId block, std::uint64_t content) const;
  /// Overwrites every block, as other requests would.
  void overwrite();

 private:
  std::uint32_t num_blocks_;
  std::vector<std::uint8_t> bytes_;
};

/// The content hashes of a request's complete blocks. An engine hashes tokens; here they are
/// numbers.
class RequestHashes final : public kvferry::connector::BlockHashes {
 public:
  explicit RequestHashes(const std::vector<std::uint64_t>& contents);
  [[nodiscard]] std::size_t size() const override { return hashes_.size(); }
  [[nodiscard]] std::span<const std::byte> hash(std::size_t index) const override {
    return hashes_.at(index);
  }

 private:
  std::vector<std::array<std::byte, 32>> hashes_;
};
