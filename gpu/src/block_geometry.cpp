// SPDX-License-Identifier: Apache-2.0
#include "kvferry/gpu/block_geometry.hpp"

#include "kvferry/base/error.hpp"

#include <limits>
#include <string>
#include <utility>

namespace kvferry::gpu {
namespace {

void check_fragment(const Fragment& fragment, std::size_t index, std::uint32_t num_blocks) {
  const std::string name = "fragment " + std::to_string(index);
  if (fragment.bytes == 0) throw ConfigError(name + " is empty");
  if (fragment.bytes > fragment.block_stride_bytes) {
    throw ConfigError(
        name + " is longer (" + std::to_string(fragment.bytes) + " bytes) than its block stride (" +
        std::to_string(fragment.block_stride_bytes) + " bytes): neighbouring blocks would overlap");
  }
  std::uint64_t span_bytes = 0;
  if (__builtin_mul_overflow(fragment.block_stride_bytes, std::uint64_t{num_blocks}, &span_bytes) ||
      span_bytes > std::numeric_limits<std::uintptr_t>::max() - fragment.base) {
    throw ConfigError(
        name + " reaches past the end of the address space: " + std::to_string(num_blocks) +
        " blocks of stride " + std::to_string(fragment.block_stride_bytes) + " bytes");
  }
}

// The last condition matters for a pool of one block: there the end of one layer is the start of
// the next one, although the two would not be neighbours in a larger pool.
bool continues(const Fragment& last, const Fragment& next) {
  return next.base == last.base + last.bytes &&
         next.block_stride_bytes == last.block_stride_bytes &&
         next.bytes <= last.block_stride_bytes - last.bytes;
}

}  // namespace

BlockGeometry make_block_geometry(std::vector<Fragment> fragments, std::uint32_t num_blocks) {
  if (num_blocks == 0) throw ConfigError("a block geometry needs at least one block");
  if (fragments.empty()) throw ConfigError("a block geometry needs at least one fragment");
  for (std::size_t i = 0; i < fragments.size(); ++i) check_fragment(fragments[i], i, num_blocks);

  BlockGeometry geometry;
  geometry.num_blocks = num_blocks;
  for (const Fragment& fragment : fragments) {
    if (!geometry.fragments.empty() && continues(geometry.fragments.back(), fragment)) {
      geometry.fragments.back().bytes += fragment.bytes;
    } else {
      geometry.fragments.push_back(fragment);
      geometry.packed_offsets.push_back(geometry.packed_bytes);
    }
    geometry.packed_bytes += fragment.bytes;
  }
  return geometry;
}

}  // namespace kvferry::gpu
