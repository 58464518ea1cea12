// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/gpu/block_geometry.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

namespace kvferry::gpu {

/// Fragments of one pool; their bases are offsets into it.
struct PackShape {
  std::vector<Fragment> fragments;
  std::uint32_t num_blocks = 0;
  std::size_t pool_bytes = 0;
  std::size_t packed_bytes = 0;

  void add(std::size_t gap_before, std::uint64_t bytes, std::uint64_t stride) {
    fragments.push_back({pool_bytes + gap_before, stride, bytes});
    pool_bytes += gap_before + num_blocks * stride;
    packed_bytes += bytes;
  }
  /// In the pool at `address`.
  [[nodiscard]] BlockGeometry geometry(std::uintptr_t address) const {
    std::vector<Fragment> placed = fragments;
    for (Fragment& fragment : placed) fragment.base += address;
    return make_block_geometry(std::move(placed), num_blocks);
  }
  /// Calls `visit(offset in the pool, offset in the packed block, bytes)` for a block's pieces.
  template <class Visit>
  void for_each_piece(BlockId block, Visit visit) const {
    std::size_t packed = 0;
    for (const Fragment& fragment : fragments) {
      visit(fragment.base + block.value() * fragment.block_stride_bytes, packed, fragment.bytes);
      packed += fragment.bytes;
    }
  }
};

[[nodiscard]] inline PackShape random_pack_shape(std::mt19937& random) {
  // Sizes that vector accesses like, and such that they do not.
  const auto random_bytes = [&random]() -> std::uint64_t {
    switch (random() % 5) {
      case 0:
        return 1 + random() % 64;
      case 1:
        return 1 + random() % 3000;
      case 2:
        return 16 * (1 + random() % 300);
      case 3:
        return 512U << (random() % 4);
      default:
        return 4096 + random() % 8 - 4;
    }
  };
  PackShape shape;
  shape.num_blocks = 1 + random() % 48;
  const std::size_t num_fragments = 1 + random() % 12;
  const bool aligned = random() % 3 == 0;
  for (std::size_t i = 0; i < num_fragments; ++i) {
    std::uint64_t bytes = random_bytes();
    if (aligned) bytes = (bytes + 15) / 16 * 16;
    const std::uint64_t gap = random() % 3 == 0 ? 0 : random() % 80;
    const std::uint64_t before = random() % 50;
    shape.add(aligned ? before / 16 * 16 : before, bytes, bytes + (aligned ? gap / 16 * 16 : gap));
  }
  return shape;
}

/// A fragment of each size around this one, at every alignment. The strides are odd: the five
/// blocks lie at five alignments.
[[nodiscard]] inline PackShape shape_of_sizes_around(std::uint64_t around) {
  PackShape shape;
  shape.num_blocks = 5;
  for (std::uint64_t bytes = around - 15; bytes <= around + 15; ++bytes) {
    shape.add(bytes % 16, bytes, bytes + (bytes % 2 == 0 ? 1 : 2));
  }
  return shape;
}

/// A fragment of this size and a small one after it.
[[nodiscard]] inline PackShape shape_with_large_fragment(std::uint64_t bytes) {
  PackShape shape;
  shape.num_blocks = 2;
  shape.add(0, bytes, bytes);
  shape.add(bytes % 7, 48, 64);
  return shape;
}

/// Two small fragments of many blocks.
[[nodiscard]] inline PackShape shape_of_many_blocks(std::size_t num_blocks) {
  PackShape shape;
  shape.num_blocks = static_cast<std::uint32_t>(num_blocks);
  shape.add(3, 29, 37);
  shape.add(0, 64, 64);
  return shape;
}

[[nodiscard]] inline PackShape shape_of_many_fragments() {
  PackShape shape;
  shape.num_blocks = 2;
  for (std::size_t i = 0; i < 500; ++i) shape.add(i % 3, 1 + i % 33, 40);
  return shape;
}

/// How many blocks one random launch takes: few, as the stand-ins' kernels are slow in debug
/// builds.
[[nodiscard]] inline std::size_t random_num_blocks(const PackShape& shape, std::mt19937& random) {
  constexpr std::size_t kMostBytes = 64 << 10U;
  const std::size_t most = std::max<std::size_t>(1, kMostBytes / shape.packed_bytes);
  return 1 + random() % std::min<std::size_t>(most, 40);
}

/// Some of them twice, as a gather may have them.
[[nodiscard]] inline std::vector<BlockId> any_blocks(const PackShape& shape, std::size_t count,
                                                     std::mt19937& random) {
  std::vector<BlockId> blocks;
  for (std::size_t i = 0; i < count; ++i) {
    blocks.emplace_back(static_cast<std::uint32_t>(random() % shape.num_blocks));
  }
  return blocks;
}

/// None of them twice: `count` of them, or all that there are.
[[nodiscard]] inline std::vector<BlockId> different_blocks(const PackShape& shape,
                                                           std::size_t count,
                                                           std::mt19937& random) {
  std::vector<BlockId> blocks;
  for (std::uint32_t i = 0; i < shape.num_blocks; ++i) blocks.emplace_back(i);
  std::shuffle(blocks.begin(), blocks.end(), random);
  blocks.resize(std::min<std::size_t>(blocks.size(), count));
  return blocks;
}

}  // namespace kvferry::gpu
