// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/ids.hpp"
#include "kvferry/cpu_tier/slots/block_key.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvferry::connector {

/// What is known, and not believed, of the bytes in the engine's GPU blocks. A block is *proven*
/// for a key when a plan that was sent computed it whole on proven blocks, or a load put it there
/// and ended well. That the engine's pool has the block under the key proves nothing: the engine
/// gives a block its key when it schedules the computation, which may then not take place, and
/// before another connector's load has shown that it came. Only proven blocks are stored.
///
/// A block that gets a new writer is not proven any more, until that very writer
/// has. One thread at a time.
class ProvenBlocks {
 public:
  explicit ProvenBlocks(std::uint32_t num_blocks) : blocks_(num_blocks) {}

  /// The incarnation `writer` of a request writes the block from now on. 0: a load, or a request
  /// that is not followed; it proves nothing by itself.
  void begin_write(BlockId block, Generation writer) {
    blocks_.at(block.value()) = {writer.value(), 0};
  }
  /// Whether `writer` was the last to begin to write it.
  [[nodiscard]] bool is_written_by(BlockId block, Generation writer) const {
    return blocks_.at(block.value()).writer == writer.value();
  }
  /// How many of the first ones of the blocks it was the last to begin to write.
  [[nodiscard]] std::uint32_t num_written_by(std::span<const BlockId> blocks,
                                             Generation writer) const {
    std::uint32_t num = 0;
    while (num < blocks.size() && is_written_by(blocks[num], writer)) ++num;
    return num;
  }
  /// The block holds what the key says.
  void prove(BlockId block, const cpu_tier::BlockKey& key) {
    blocks_.at(block.value()).key = mark_of(key);
  }
  /// Of blocks with a key each, those that `writer` was the last to begin to write hold what the
  /// key says.
  void prove_written_by(std::span<const BlockId> blocks, std::span<const cpu_tier::BlockKey> keys,
                        Generation writer) {
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      Block& block = blocks_.at(blocks[i].value());
      if (block.writer == writer.value()) block.key = mark_of(keys[i]);
    }
  }
  /// Nothing is known of the block any more, and its writer proves nothing more of it.
  void forget(BlockId block) { blocks_.at(block.value()) = {}; }
  [[nodiscard]] bool holds(BlockId block, const cpu_tier::BlockKey& key) const {
    return blocks_.at(block.value()).key == mark_of(key);
  }

  /// Forgets every block that `is_kept` refuses, which is asked of proven ones.
  template <class IsKept>
  void keep_if(IsKept is_kept) {
    for (std::uint32_t i = 0; i < blocks_.size(); ++i) {
      if (blocks_[i].key != 0 && !is_kept(BlockId(i), blocks_[i].key)) blocks_[i] = {};
    }
  }
  /// What a key is known by here; never 0.
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
