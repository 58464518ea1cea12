// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/ids.hpp"

#include <cstdint>
#include <span>
#include <vector>

/// How chunks of memory are divided into slots of several sizes.
namespace kvferry::cpu_tier {

/// Number of slots of `slot_bytes` in a chunk. The rest of the chunk is smaller than one slot.
/// Throws ConfigError if either argument is 0 or no slot fits.
[[nodiscard]] std::uint32_t slots_per_chunk(std::uint64_t chunk_bytes, std::uint64_t slot_bytes);

/// Bytes of a chunk that has this many slots of each class: enough for the class that needs most.
[[nodiscard]] std::uint64_t chunk_bytes(std::span<const std::uint32_t> slots_per_chunk,
                                        std::span<const std::uint64_t> slot_bytes);

/// How the memory of a rank is divided into chunks, and each chunk into slots of one class.
struct SlabGeometry {
  std::uint32_t num_chunks = 0;
  std::vector<std::uint32_t> slots_per_chunk;  ///< By class.
  bool operator==(const SlabGeometry&) const = default;
};

/// Divides `arena_bytes` of memory for blocks of `slot_bytes`, indexed by class. With one class, a
/// chunk is a slot. With several classes, a chunk has up to 64 slots of the largest class, as long
/// as there are at least 64 chunks; so the slots of any other class leave less of a chunk unused
/// than one largest slot. Throws ConfigError if there is no chunk, no class, or a class of 0 bytes.
[[nodiscard]] SlabGeometry slab_geometry(std::uint64_t arena_bytes,
                                         std::span<const std::uint64_t> slot_bytes);

/// Where a slot is.
struct SlotPlace {
  ChunkId chunk;
  std::uint32_t index = 0;  ///< In the chunk; its slots follow each other without gaps.
  bool operator==(const SlotPlace&) const = default;
};
[[nodiscard]] constexpr SlotPlace place_of(SlotId slot, std::uint32_t slots_per_chunk) {
  return {ChunkId(slot.value() / slots_per_chunk), slot.value() % slots_per_chunk};
}

/// The slot size for an object of `object_bytes`, if objects can have any size: the next larger of
/// eight sizes per doubling, so that less than an eighth of the object is wasted; at least 4 KiB (a
/// page). Throws ConfigError for 0 and for more than 2^62.
[[nodiscard]] std::uint64_t slot_bytes_for(std::uint64_t object_bytes);

}  // namespace kvferry::cpu_tier
