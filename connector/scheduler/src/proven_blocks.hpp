// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/ids.hpp"
#include "kvferry/cpu_tier/slots/block_key.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvferry::connector {

/// What is known, not only believed, about the bytes in the engine's GPU blocks. A block is
/// *proven* for a key when a plan that was sent computed it completely on proven blocks, or a load
/// put it there and succeeded. It proves nothing that the engine's pool has the block under the
/// key: the engine gives a block its key when it schedules the computation, which may then not take
/// place, and also before another connector's load has arrived. Only proven blocks are stored.
///
/// A block with a new writer is no longer proven, until that writer has proven it. One thread at a
/// time.
class ProvenBlocks {
 public:
  explicit ProvenBlocks(std::uint32_t num_blocks) : blocks_(num_blocks) {}

  /// From now on the incarnation `writer` of a request writes the block. 0: a load, or a request
  /// that is not followed; these prove nothing by themselves.
  void begin_write(BlockId block, Generation writer) { begin_write({&block, 1}, writer); }
  void begin_write(std::span<const BlockId> blocks, Generation writer) {
    for (const BlockId block : blocks) blocks_.at(block.value()) = {writer.value(), 0};
  }
  /// Whether `writer` was the last one to begin to write it.
  [[nodiscard]] bool is_written_by(BlockId block, Generation writer) const {
    return blocks_.at(block.value()).writer == writer.value();
  }
  /// The number of blocks, from the first one, that `writer` was the last to begin to write.
  [[nodiscard]] std::uint32_t num_written_by(std::span<const BlockId> blocks,
                                             Generation writer) const {
    std::uint32_t num = 0;
    while (num < blocks.size() && is_written_by(blocks[num], writer)) ++num;
    return num;
  }
  /// Proves that the block holds what the key says.
  void prove(BlockId block, const cpu_tier::BlockKey& key) {
    blocks_.at(block.value()).key = mark_of(key);
  }
  /// Proves those of the blocks, each with its key, that `writer` was the last to begin to write.
  void prove_written_by(std::span<const BlockId> blocks, std::span<const cpu_tier::BlockKey> keys,
                        Generation writer) {
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      Block& block = blocks_.at(blocks[i].value());
      if (block.writer == writer.value()) block.key = mark_of(keys[i]);
    }
  }
  /// Forgets everything about the block. Its writer proves nothing more about it.
  void forget(BlockId block) { blocks_.at(block.value()) = {}; }
  [[nodiscard]] bool holds(BlockId block, const cpu_tier::BlockKey& key) const {
    return blocks_.at(block.value()).key == mark_of(key);
  }

  /// Forgets every proven block that `is_kept` refuses.
  template <class IsKept>
  void keep_if(IsKept is_kept) {
    for (std::uint32_t i = 0; i < blocks_.size(); ++i) {
      if (blocks_[i].key != 0 && !is_kept(BlockId(i), blocks_[i].key)) blocks_[i] = {};
    }
  }
  /// A number for the key; never 0.
  [[nodiscard]] static std::uint64_t mark_of(const cpu_tier::BlockKey& key) {
    return key.mixed() | 1U;
  }

 private:
  struct Block {
    std::uint64_t writer = 0;
    std::uint64_t key = 0;  ///< 0: not proven.
  };
  std::vector<Block> blocks_;
};

}  // namespace kvferry::connector
