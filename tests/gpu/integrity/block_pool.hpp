// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/gpu/device.hpp"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace kvferry::integrity {

/// Where the blocks of one group lie: the bytes of each fragment, and gaps behind them.
struct Shape {
  std::string name;
  std::vector<std::uint64_t> fragment_bytes;
  std::uint64_t gap_bytes = 0;

  [[nodiscard]] std::uint64_t packed_bytes() const;
};

/// 1 KiB to 2 MiB blocks, fragments of 512 B to 512 KiB, and odd ones; those of at most
/// `max_block_bytes`.
[[nodiscard]] std::vector<Shape> shapes(std::uint64_t max_block_bytes);

/// Blocks of one group in device memory, as an engine keeps them. Reaches them with copies of their
/// fragments, never by gather or scatter, which are under test.
class BlockPool {
 public:
  BlockPool(gpu::Device& device, Shape shape, std::uint32_t num_blocks);

  [[nodiscard]] const Shape& shape() const { return shape_; }
  [[nodiscard]] const gpu::BlockGeometry& geometry() const { return geometry_; }
  [[nodiscard]] std::uint64_t packed_bytes() const { return packed_bytes_; }
  [[nodiscard]] std::uint32_t num_blocks() const { return geometry_.num_blocks; }

  /// Submits copies between a block and a packed block in host memory (device's address).
  void copy(gpu::Stream& stream, gpu::CopyDirection direction, BlockId block,
            std::uintptr_t packed) const;
  void fill(gpu::Stream& stream, BlockId block, std::uint8_t value) const;

 private:
  Shape shape_;
  std::uint64_t packed_bytes_;
  std::unique_ptr<gpu::DeviceBuffer> memory_;
  std::vector<gpu::Fragment> fragments_;
  gpu::BlockGeometry geometry_;
};

}  // namespace kvferry::integrity
