// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/ids.hpp"
#include "kvferry/cpu_tier/slots/block_key.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

/// What the scheduler side reads of the engine's own objects, by two small interfaces: the
/// Python binding implements them over vLLM's, tests over plain vectors. Called on the scheduler's
/// thread only.
namespace kvferry::connector {

/// The content hashes of one request's complete blocks, as the engine extends (and sometimes
/// truncates) them.
class BlockHashes {
 public:
  virtual ~BlockHashes() = default;
  [[nodiscard]] virtual std::size_t size() const = 0;
  /// Hash of the `index`-th block; valid until the engine changes the list.
  [[nodiscard]] virtual std::span<const std::byte> hash(std::size_t index) const = 0;
};

/// Stands in block tables for a block that slid out of a window (vLLM: the pool's null block).
inline constexpr BlockId kNullBlock{0};

/// The engine's GPU block pool with its prefix cache. Keys are of the weights that the engine has
/// now: it caches what other weights computed, if it does, under the same hashes.
class BlockPool {
 public:
  virtual ~BlockPool() = default;
  /// SchedulerEngine::change_weights().
  void set_weights(WeightsId weights) { weights_ = weights; }
  /// Whether `block` is cached under `key` now: the engine believes that it holds that, or will
  /// after the step that it schedules (`ProvenBlocks` knows).
  [[nodiscard]] virtual bool holds(BlockId block, const cpu_tier::BlockKey& key) const = 0;
  /// Sets `held` to 1 for those of the blocks, each with its key, that holds() is true of.
  virtual void mark_held(std::span<const BlockId> blocks, std::span<const cpu_tier::BlockKey> keys,
                         std::span<std::uint8_t> held) const {
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      if (holds(blocks[i], keys[i])) held[i] = 1;
    }
  }
  /// What `block` is cached under, if it is.
  [[nodiscard]] virtual std::optional<cpu_tier::BlockKey> key(BlockId block) const = 0;

 protected:
  [[nodiscard]] WeightsId weights() const { return weights_; }

 private:
  WeightsId weights_;
};

}  // namespace kvferry::connector
