// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/ids.hpp"
#include "kvferry/cpu_tier/slots/block_key.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

/// The engine's own objects, as the scheduler side reads them through two small interfaces. The
/// Python binding implements them over vLLM's objects, tests over plain vectors. They are called on
/// the scheduler's thread only.
namespace kvferry::connector {

/// The content hashes of one request's complete blocks, as the engine extends (and sometimes
/// truncates) them.
class BlockHashes {
 public:
  virtual ~BlockHashes() = default;
  [[nodiscard]] virtual std::size_t size() const = 0;
  /// The hash of the `index`-th block; valid until the engine changes the list.
  [[nodiscard]] virtual std::span<const std::byte> hash(std::size_t index) const = 0;
  /// Reads the hashes of many blocks at once: those of the blocks `first`, `first + step`, and so
  /// on.
  virtual void read(std::size_t first, std::size_t step,
                    std::span<std::span<const std::byte>> hashes) const {
    for (std::size_t i = 0; i < hashes.size(); ++i) hashes[i] = hash(first + i * step);
  }
};

/// In block tables this replaces a block that slid out of a window (vLLM: the pool's null block).
inline constexpr BlockId kNullBlock{0};

/// The engine's GPU block pool with its prefix cache. A key includes the weights that the engine
/// has now; a hash does not. So blocks that other weights computed, and that the engine still
/// caches, have the same hashes there.
class BlockPool {
 public:
  virtual ~BlockPool() = default;
  /// Only SchedulerEngine calls this.
  void set_weights(WeightsId weights) { weights_ = weights; }
  /// Whether `block` is cached under `key` now. The engine then believes that the block has that
  /// content, or will have it after the step that it schedules (`ProvenBlocks` knows).
  [[nodiscard]] virtual bool holds(BlockId block, const cpu_tier::BlockKey& key) const = 0;
  /// Sets `held` to 1 for each of the blocks for which holds() is true with its key.
  virtual void mark_held(std::span<const BlockId> blocks, std::span<const cpu_tier::BlockKey> keys,
                         std::span<std::uint8_t> held) const {
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      if (holds(blocks[i], keys[i])) held[i] = 1;
    }
  }
  /// The key under which `block` is cached; nothing if it is not cached.
  [[nodiscard]] virtual std::optional<cpu_tier::BlockKey> key(BlockId block) const = 0;

 protected:
  [[nodiscard]] WeightsId weights() const { return weights_; }

 private:
  WeightsId weights_;
};

}  // namespace kvferry::connector
