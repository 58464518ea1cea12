// SPDX-License-Identifier: Apache-2.0
#include "block_pool.hpp"

#include <numeric>
#include <utility>

namespace kvferry::integrity {

std::uint64_t Shape::packed_bytes() const {
  return std::accumulate(fragment_bytes.begin(), fragment_bytes.end(), std::uint64_t{0});
}

std::vector<Shape> shapes(std::uint64_t max_block_bytes) {
  constexpr std::uint64_t kKiB = 1024;
  const std::vector<Shape> all = {
      {"1 KiB of 512 B", std::vector<std::uint64_t>(2, 512), 0},
      {"odd bytes", {1, 513, 4095, 17, 4097, 1000}, 5},
      {"32 KiB of 512 B", std::vector<std::uint64_t>(64, 512), 512},
      {"32 KiB of 4 KiB", std::vector<std::uint64_t>(8, 4 * kKiB), 0},
      {"odd, beyond 64 KiB", {65'537, 12'345, 70'001}, 3},
      {"256 KiB of 8 KiB", std::vector<std::uint64_t>(32, 8 * kKiB), 8 * kKiB},
      {"512 KiB of 32 KiB", std::vector<std::uint64_t>(16, 32 * kKiB), 0},
      {"1 MiB of one", {1024 * kKiB}, 0},
      {"2 MiB of 512 KiB", std::vector<std::uint64_t>(4, 512 * kKiB), 16},
  };
  std::vector<Shape> chosen;
  for (const Shape& shape : all) {
    if (shape.packed_bytes() <= max_block_bytes) chosen.push_back(shape);
  }
  return chosen;
}

BlockPool::BlockPool(gpu::Device& device, Shape shape, std::uint32_t num_blocks)
    : shape_(std::move(shape)), packed_bytes_(shape_.packed_bytes()) {
  std::uint64_t end = 0;
  for (const std::uint64_t bytes : shape_.fragment_bytes) {
    const std::uint64_t stride = bytes + shape_.gap_bytes;
    fragments_.push_back({end, stride, bytes});
    end += stride * num_blocks;
  }
  memory_ = device.allocate(end);
  for (gpu::Fragment& fragment : fragments_) fragment.base += memory_->address();
  geometry_ = gpu::make_block_geometry(fragments_, num_blocks);
}

void BlockPool::copy(gpu::Stream& stream, gpu::CopyDirection direction, BlockId block,
                     std::uintptr_t packed) const {
  std::vector<gpu::CopyRun> runs;
  for (const gpu::Fragment& fragment : fragments_) {
    const std::uintptr_t in_pool = fragment.base + block.value() * fragment.block_stride_bytes;
    if (direction == gpu::CopyDirection::kHostToDevice) {
      runs.push_back({in_pool, packed, fragment.bytes});
    } else {
      runs.push_back({packed, in_pool, fragment.bytes});
    }
    packed += fragment.bytes;
  }
  stream.copy(direction, runs);
}

void BlockPool::fill(gpu::Stream& stream, BlockId block, std::uint8_t value) const {
  for (const gpu::Fragment& fragment : fragments_) {
    stream.fill(fragment.base + block.value() * fragment.block_stride_bytes, value, fragment.bytes);
  }
}

}  // namespace kvferry::integrity
