// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/gpu/device.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace kvferry::transfer {

/// Some consecutive words of BlockSums, one for each block of a piece.
struct SumRange {
  std::uint64_t first = 0;
  std::uint32_t count = 0;  ///< 0: no sums are made.
};

/// Words of device memory in which kernels add up the sums of blocks (gpu/tag_sum.hpp), and the
/// pinned host memory to which they are sent. The words of a store belong to its region of the
/// staging ring, and are free again with it. The words of loads are taken and given back.
///
/// before() is called by the engine's thread, take() and give_back() by the transfer thread. The
/// others can be called by any thread that uses the range.
class BlockSums {
 public:
  /// How many load pieces can have words at the same time. No link has more in flight; a piece that
  /// finds no free words waits.
  static constexpr std::uint32_t kMaxLoads = 32;

  /// `ring_bytes` is the size of the staging ring, whose entries have at least `smallest_block`
  /// bytes. `most_blocks` is the most blocks of one piece of a load. The constructor allocates; it
  /// throws ResourceError or DeviceError.
  BlockSums(gpu::Device& device, std::uint64_t ring_bytes, std::uint64_t smallest_block,
            std::uint32_t most_blocks);
  ~BlockSums();
  BlockSums(const BlockSums&) = delete;
  BlockSums& operator=(const BlockSums&) = delete;

  /// Allocates the memory, unless it is there. Throws ResourceError or DeviceError; then there is
  /// none.
  void take_memory();
  /// Frees the memory. If `is_quiet` is false, a launch may still write it, and it is kept until
  /// the process ends; only its registration ends now.
  void give_memory_back(bool is_quiet);

  /// The words for `count` blocks in adjacent regions of the staging ring that end at `ring_end`.
  /// The words of a block belong to its own region or to a later one of these, so they stay taken
  /// as long as the block's region: the ring frees the older regions first.
  [[nodiscard]] SumRange before(std::uint64_t ring_end, std::uint32_t count) const;
  /// Words for a load's piece; nothing if all are in use.
  [[nodiscard]] std::optional<SumRange> take(std::uint32_t count);
  void give_back(const SumRange& range);

  /// Sets the words to zero, in stream order.
  void clear(gpu::Stream& stream, const SumRange& range) const;
  /// The address of the word to which the sum of the range's first block is added.
  [[nodiscard]] std::uintptr_t device_address(const SumRange& range) const;
  /// Copies the words to the host, in stream order. A kernel does it, because a copy would wait for
  /// the copies of stores before it.
  void send(gpu::Stream& stream, const SumRange& range) const;
  /// The sums on the host. Call it after the work of send() has ended.
  [[nodiscard]] std::span<const std::uint64_t> arrived(const SumRange& range) const;

 private:
  struct Memory;

  gpu::Device& device_;
  const std::uint64_t smallest_block_;
  const std::uint64_t num_ring_words_;
  const std::uint32_t most_blocks_;
  std::unique_ptr<Memory> memory_;
  std::vector<std::uint32_t> free_;  ///< Numbers of loads' ranges.
};

}  // namespace kvferry::transfer
