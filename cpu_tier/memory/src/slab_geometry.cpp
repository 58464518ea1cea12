// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/memory/slab_geometry.hpp"

#include "kvferry/base/error.hpp"

#include <algorithm>
#include <bit>
#include <limits>
#include <string>

namespace kvferry::cpu_tier {
namespace {

constexpr std::uint64_t kLeastSlotBytes = 4096;
constexpr std::uint64_t kMostObjectBytes = std::uint64_t{1} << 62;
/// Sizes per doubling: 2 to the power of this.
constexpr int kStepBits = 3;

/// Of the largest class.
constexpr std::uint64_t kMostSlotsPerChunk = 64;
/// Chunks that there should be, so that classes can share them.
constexpr std::uint64_t kEnoughChunks = 64;

constexpr std::uint64_t kMost32 = std::numeric_limits<std::uint32_t>::max();

}  // namespace

std::uint32_t slots_per_chunk(std::uint64_t chunk_bytes, std::uint64_t slot_bytes) {
  if (slot_bytes == 0 || slot_bytes > chunk_bytes) {
    throw ConfigError("slots of " + std::to_string(slot_bytes) + " bytes in chunks of " +
                      std::to_string(chunk_bytes) +
                      " bytes; allowed is at least one byte and at most a chunk");
  }
  return static_cast<std::uint32_t>(std::min(chunk_bytes / slot_bytes, kMost32));
}

std::uint64_t chunk_bytes(std::span<const std::uint32_t> slots_per_chunk,
                          std::span<const std::uint64_t> slot_bytes) {
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < slot_bytes.size(); ++i) {
    bytes = std::max(bytes, slots_per_chunk[i] * slot_bytes[i]);
  }
  return bytes;
}

SlabGeometry slab_geometry(std::uint64_t arena_bytes, std::uint64_t chunk_bytes,
                           std::span<const std::uint64_t> slot_bytes) {
  SlabGeometry geometry;
  for (const std::uint64_t bytes : slot_bytes) {
    geometry.slots_per_chunk.push_back(slots_per_chunk(chunk_bytes, bytes));
  }
  if (slot_bytes.empty() || arena_bytes < chunk_bytes) {
    throw ConfigError("a CPU tier of " + std::to_string(arena_bytes) + " bytes in chunks of " +
                      std::to_string(chunk_bytes) + " bytes for " +
                      std::to_string(slot_bytes.size()) +
                      " sizes of slots holds nothing: make it larger");
  }
  geometry.num_chunks = static_cast<std::uint32_t>(std::min(arena_bytes / chunk_bytes, kMost32));
  return geometry;
}

SlabGeometry least_of(std::span<const SlabGeometry> ranks) {
  if (ranks.empty()) throw ConfigError("no rank has told the geometry of its memory");
  SlabGeometry least = ranks.front();
  for (const SlabGeometry& rank : ranks) {
    if (rank.slots_per_chunk.size() != least.slots_per_chunk.size()) {
      throw ConfigError("ranks have " + std::to_string(least.slots_per_chunk.size()) + " and " +
                        std::to_string(rank.slots_per_chunk.size()) +
                        " sizes of slots; all of them need the same KV cache groups");
    }
    least.num_chunks = std::min(least.num_chunks, rank.num_chunks);
    std::transform(rank.slots_per_chunk.begin(), rank.slots_per_chunk.end(),
                   least.slots_per_chunk.begin(), least.slots_per_chunk.begin(),
                   [](std::uint32_t a, std::uint32_t b) { return std::min(a, b); });
  }
  return least;
}

SlabGeometry geometry_of_ranks(std::uint64_t share_bytes,
                               std::span<const std::vector<std::uint64_t>> slot_bytes) {
  const std::size_t num_ranks = slot_bytes.empty() ? 0 : slot_bytes.front().size();
  std::vector<std::vector<std::uint64_t>> of_ranks(num_ranks);
  for (const std::vector<std::uint64_t>& of_class : slot_bytes) {
    if (of_class.size() != num_ranks) {
      throw ConfigError("a size of slots is told for " + std::to_string(of_class.size()) +
                        " ranks and another one for " + std::to_string(num_ranks));
    }
    for (std::size_t rank = 0; rank < num_ranks; ++rank) of_ranks[rank].push_back(of_class[rank]);
  }
  std::uint64_t largest = 1;
  for (const std::vector<std::uint64_t>& of_rank : of_ranks) {
    largest = std::max(largest, *std::max_element(of_rank.begin(), of_rank.end()));
  }
  const std::uint64_t num_largest =
      slot_bytes.size() == 1
          ? 1
          : std::clamp<std::uint64_t>(share_bytes / largest / kEnoughChunks, 1, kMostSlotsPerChunk);
  std::vector<SlabGeometry> geometries;
  for (const std::vector<std::uint64_t>& of_rank : of_ranks) {
    const std::uint64_t chunk_bytes =
        num_largest * *std::max_element(of_rank.begin(), of_rank.end());
    geometries.push_back(slab_geometry(share_bytes, chunk_bytes, of_rank));
  }
  return least_of(geometries);
}

std::uint64_t slot_bytes_for(std::uint64_t object_bytes) {
  if (object_bytes == 0 || object_bytes > kMostObjectBytes) {
    throw ConfigError("an object of " + std::to_string(object_bytes) +
                      " bytes; allowed is 1 byte to 2^62");
  }
  if (object_bytes <= kLeastSlotBytes) return kLeastSlotBytes;
  const int exponent = std::bit_width(object_bytes - 1) - 1;
  const std::uint64_t step = std::uint64_t{1} << static_cast<unsigned>(exponent - kStepBits);
  return (object_bytes + step - 1) / step * step;
}

}  // namespace kvferry::cpu_tier
