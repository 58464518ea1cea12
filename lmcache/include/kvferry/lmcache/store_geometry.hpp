// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

/// How the memory of an object store is divided: into chunks of one size, each of which has slots
/// of one size in front and their records behind.
///
///     chunk:  | slot 0 | slot 1 | ... |   left over   | ... | record 1 | record 0 |
///
/// The number of a chunk's slots says all there is to say of it: slots are as large as so many can
/// be. Stores that share their memory are divided alike.
namespace kvferry::lmcache {

/// A size of slots.
struct SlotSize {
  std::uint64_t bytes = 0;
  std::uint32_t num_slots = 0;  ///< In a chunk, each with its record.
  bool operator==(const SlotSize&) const = default;
};

struct StoreGeometry {
  std::uint64_t chunk_bytes = 0;  ///< Slots and records; whole pages of 4 KiB.
  std::uint32_t num_chunks = 0;
  /// Those that there are, ascending in bytes, each with fewer slots than the one before; the last
  /// has a whole chunk. Of the smallest no class has more than about kMaxSlotsPerClass slots: each
  /// costs metadata in every class that could have all of the memory.
  std::vector<SlotSize> sizes;
  bool operator==(const StoreGeometry&) const = default;

  /// Which of the sizes is for a value of `value_bytes` whose key has `key_bytes`; nothing if no
  /// chunk holds it. Keys that do not fit into a record lie behind the value.
  [[nodiscard]] std::optional<std::uint32_t> size_for(std::uint64_t value_bytes,
                                                      std::uint64_t key_bytes) const;
  /// Which of the sizes has so many slots in a chunk; nothing if none has.
  [[nodiscard]] std::optional<std::uint32_t> size_with(std::uint32_t num_slots) const;
};

inline constexpr std::uint64_t kRecordBytes = 256;
inline constexpr std::uint64_t kMaxSlotsPerClass = std::uint64_t{1} << 20U;
/// Less cannot be divided sensibly.
inline constexpr std::uint64_t kLeastCapacityBytes = std::uint64_t{1} << 20U;

/// Of the chunks of a store of at most `capacity_bytes`: about 64 of them, each of 32 MiB to 1 GiB,
/// but at least eight: they are what sizes are given room in. An object has at most one chunk.
/// Throws ConfigError below kLeastCapacityBytes and above 2^50.
[[nodiscard]] std::uint64_t chunk_bytes_for(std::uint64_t capacity_bytes);

/// Of chunks of `chunk_bytes`, at least a page, that may have up to `max_chunk_slots` slots.
[[nodiscard]] StoreGeometry divided(std::uint64_t chunk_bytes, std::uint32_t num_chunks,
                                    std::uint32_t max_chunk_slots);
/// Of chunks as chunk_bytes_for() says. Throws as that.
[[nodiscard]] StoreGeometry store_geometry(std::uint64_t capacity_bytes);

}  // namespace kvferry::lmcache
