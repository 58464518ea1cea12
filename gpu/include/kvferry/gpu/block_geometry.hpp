// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/ids.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace kvferry::gpu {

/// One contiguous piece of every block: block b's piece lies at `base + b * block_stride_bytes` and
/// is `bytes` long (one layer's K and V, say). Addresses are those of the device.
struct Fragment {
  std::uintptr_t base = 0;
  std::uint64_t block_stride_bytes = 0;
  std::uint64_t bytes = 0;
};

/// Where the blocks of one KV cache group lie in the engine's pool, and how one block looks when
/// packed (in the staging ring and in its slot): fragments one after the other in order, no
/// padding. Immutable after make_block_geometry(); all addressing arithmetic of all back ends is in
/// here.
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

/// Makes a geometry: neighbours that are contiguous within a block and share a stride are merged (a
/// cross-layer layout becomes one fragment). The order of fragments is kept, so that every rank and
/// every run packs alike. Throws ConfigError if there is no fragment, a fragment is empty, longer
/// than its stride or reaches past the end of the address space, or `num_blocks` is 0; the message
/// names the fragment.
[[nodiscard]] BlockGeometry make_block_geometry(std::vector<Fragment> fragments,
                                                std::uint32_t num_blocks);

}  // namespace kvferry::gpu
