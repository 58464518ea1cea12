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
/// The number of sizes per doubling is 2 to this power.
constexpr int kStepBits = 3;

/// Most slots per chunk of the largest class.
constexpr std::uint64_t kMostSlotsPerChunk = 64;
/// With at least this many chunks, classes can share them.
constexpr std::uint64_t kEnoughChunks = 64;

constexpr std::uint64_t kMost32 = std::numeric_limits<std::uint32_t>::max();

}  // namespace

std::uint32_t slots_per_chunk(std::uint64_t chunk_bytes, std::uint64_t slot_bytes) {
  if (slot_bytes == 0 || slot_bytes > chunk_bytes) {
    throw ConfigError("slots of " + std::to_string(slot_bytes) + " bytes in chunks of " +
                      std::to_string(chunk_bytes) +
                      " bytes; allowed: at least one byte and at most a chunk");
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

SlabGeometry slab_geometry(std::uint64_t arena_bytes, std::span<const std::uint64_t> slot_bytes) {
  const std::uint64_t largest =
      slot_bytes.empty() ? 0 : *std::max_element(slot_bytes.begin(), slot_bytes.end());
  if (largest == 0 || arena_bytes < largest) {
    throw ConfigError("a CPU tier of " + std::to_string(arena_bytes) + " bytes for " +
                      std::to_string(slot_bytes.size()) + " sizes of slots, the largest of " +
                      std::to_string(largest) + " bytes, holds nothing: make it larger");
  }
  const std::uint64_t num_largest =
      slot_bytes.size() == 1
          ? 1
          : std::clamp<std::uint64_t>(arena_bytes / largest / kEnoughChunks, 1, kMostSlotsPerChunk);
  const std::uint64_t chunk_bytes = num_largest * largest;
  SlabGeometry geometry;
  for (const std::uint64_t bytes : slot_bytes) {
    geometry.slots_per_chunk.push_back(slots_per_chunk(chunk_bytes, bytes));
  }
  geometry.num_chunks = static_cast<std::uint32_t>(std::min(arena_bytes / chunk_bytes, kMost32));
  return geometry;
}

std::uint64_t slot_bytes_for(std::uint64_t object_bytes) {
  if (object_bytes == 0 || object_bytes > kMostObjectBytes) {
    throw ConfigError("an object of " + std::to_string(object_bytes) +
                      " bytes; allowed: 1 byte to 2^62");
  }
  if (object_bytes <= kLeastSlotBytes) return kLeastSlotBytes;
  const int exponent = std::bit_width(object_bytes - 1) - 1;
  const std::uint64_t step = std::uint64_t{1} << static_cast<unsigned>(exponent - kStepBits);
  return (object_bytes + step - 1) / step * step;
}

}  // namespace kvferry::cpu_tier
