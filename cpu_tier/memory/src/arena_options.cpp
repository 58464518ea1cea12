// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/memory/arena_options.hpp"

#include "kvferry/cpu_tier/memory/host_mapping.hpp"

#include <algorithm>
#include <numeric>

namespace kvferry::cpu_tier {

std::uint64_t chunks_per_piece(std::uint64_t chunk_bytes, std::uint64_t page_bytes,
                               std::uint64_t pinned_piece_bytes) {
  const std::uint64_t quantum = page_bytes / std::gcd(page_bytes, chunk_bytes);
  return std::max(pinned_piece_bytes / chunk_bytes / quantum, std::uint64_t{1}) * quantum;
}

std::uint32_t chunks_per_piece(const ArenaShape& shape, std::uint64_t pinned_piece_bytes) {
  const std::uint64_t most =
      chunks_per_piece(shape.chunk_bytes, HostMapping::page_bytes(), pinned_piece_bytes);
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(most, shape.num_chunks));
}

}  // namespace kvferry::cpu_tier
