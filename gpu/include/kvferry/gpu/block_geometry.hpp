// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/ids.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace kvferry::gpu {

/// One contiguous piece of every block, for example one layer's K and V: block b's piece begins at
/// `base + b * block_stride_bytes` and is `bytes` long. Addresses are device addresses.
struct Fragment {
  std::uintptr_t base = 0;
  std::uint64_t block_stride_bytes = 0;
  std::uint64_t bytes = 0;
};

/// Where the blocks of one KV cache group lie in the engine's pool, and the layout of a packed
/// block (in the staging ring and in its slot): its fragments in order, without padding. Immutable
/// after make_block_geometry(). All back ends take their address arithmetic from here.
struct BlockGeometry {
  std::vector<Fragment> fragments;
  /// Offset of each fragment in the packed block.
  std::vector<std::uint64_t> packed_offsets;
  /// Bytes of one packed block: the sum over fragments.
  std::uint64_t packed_bytes = 0;
  std::uint32_t num_blocks = 0;

  [[nodiscard]] std::uintptr_t fragment_address(std::size_t fragment, BlockId block) const {
    const Fragment& f = fragments[fragment];
    return f.base + std::uint64_t{block.value()} * f.block_stride_bytes;
  }
};

/// Makes a geometry. Neighbouring fragments that are contiguous within a block and have the same
/// stride are merged (a cross-layer layout becomes one fragment). The order of fragments is kept,
/// so every rank and every run packs in the same way. Throws ConfigError if there is no fragment, a
/// fragment is empty, longer than its stride or reaches past the end of the address space, or
/// `num_blocks` is 0; the message names the fragment.
[[nodiscard]] BlockGeometry make_block_geometry(std::vector<Fragment> fragments,
                                                std::uint32_t num_blocks);

}  // namespace kvferry::gpu
