// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/ids.hpp"

#include <cstdint>
#include <span>
#include <vector>

/// How chunks of memory are divided into slots of several sizes.
namespace kvferry::cpu_tier {

/// Slots of `slot_bytes` in a chunk. What is left behind them is less than one slot. Throws
/// ConfigError if either is 0 or not one slot fits.
[[nodiscard]] std::uint32_t slots_per_chunk(std::uint64_t chunk_bytes, std::uint64_t slot_bytes);

/// What a chunk with so many slots of each class takes: as much as the slots of some class.
[[nodiscard]] std::uint64_t chunk_bytes(std::span<const std::uint32_t> slots_per_chunk,
                                        std::span<const std::uint64_t> slot_bytes);

/// How the memory of a rank is divided into chunks, each of so many slots of some class.
struct SlabGeometry {
  std::uint32_t num_chunks = 0;
  std::vector<std::uint32_t> slots_per_chunk;  ///< By class.
  bool operator==(const SlabGeometry&) const = default;
};

/// Of memory of `arena_bytes` for blocks of `slot_bytes`, by class. One class: a chunk is a slot.
/// Several: a chunk has up to 64 slots of the largest, as long as there are 64 chunks, so that at
/// most one part in so many of it is left after the slots of another class. Throws ConfigError if
/// there is no chunk, no class, or a class without bytes.
[[nodiscard]] SlabGeometry slab_geometry(std::uint64_t arena_bytes,
                                         std::span<const std::uint64_t> slot_bytes);

/// Where a slot is.
struct SlotPlace {
  ChunkId chunk;
  std::uint32_t index = 0;  ///< In the chunk, whose slots follow each other without a gap.
  bool operator==(const SlotPlace&) const = default;
};
[[nodiscard]] constexpr SlotPlace place_of(SlotId slot, std::uint32_t slots_per_chunk) {
  return {ChunkId(slot.value() / slots_per_chunk), slot.value() % slots_per_chunk};
}

/// The bytes of a slot for objects of `object_bytes` where objects have any size: the next of
/// eight sizes per doubling, so that less than an eighth of the object is wasted; 4 KiB (a page) at
/// least. Throws ConfigError for 0 and above 2^62.
[[nodiscard]] std::uint64_t slot_bytes_for(std::uint64_t object_bytes);

}  // namespace kvferry::cpu_tier
