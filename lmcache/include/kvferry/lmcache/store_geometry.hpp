// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

/// How the memory of an object store is divided: into chunks of one size. Each chunk has slots of
/// one size at its beginning and their records at its end.
///
///     chunk:  | slot 0 | slot 1 | ... |   left over   | ... | record 1 | record 0 |
///
/// The number of slots determines a chunk's division: slots are as large as possible for that
/// number. Stores that share their memory are divided in the same way.
namespace kvferry::lmcache {

/// A slot size.
struct SlotSize {
  std::uint64_t bytes = 0;
  std::uint32_t num_slots = 0;  ///< In a chunk, each with its record.
  bool operator==(const SlotSize&) const = default;
};

struct StoreGeometry {
  std::uint64_t chunk_bytes = 0;  ///< Slots and records; whole pages of 4 KiB.
  std::uint32_t num_chunks = 0;
  /// All slot sizes, ascending in bytes, each with fewer slots than the one before; the last one
  /// has a whole chunk. Even the smallest size has no more than about kMaxSlotsPerClass slots in
  /// its class, because every class could have all of the memory, and each possible slot costs
  /// metadata.
  std::vector<SlotSize> sizes;
  bool operator==(const StoreGeometry&) const = default;

  /// The slot size for a value of `value_bytes` whose key has `key_bytes`; nothing if it is larger
  /// than a chunk. A key that does not fit into a record lies after the value.
  [[nodiscard]] std::optional<std::uint32_t> size_for(std::uint64_t value_bytes,
                                                      std::uint64_t key_bytes) const;
  /// The slot size with that many slots in a chunk; nothing if there is none.
  [[nodiscard]] std::optional<std::uint32_t> size_with(std::uint32_t num_slots) const;
};

inline constexpr std::uint64_t kRecordBytes = 256;
inline constexpr std::uint64_t kMaxSlotsPerClass = std::uint64_t{1} << 20U;
/// Smaller stores cannot be divided usefully.
inline constexpr std::uint64_t kLeastCapacityBytes = std::uint64_t{1} << 20U;

/// The chunk size of a store of at most `capacity_bytes`: about 64 chunks of 32 MiB to 1 GiB each,
/// but at least eight chunks, because each slot size takes whole chunks. An object is at most one
/// chunk large. Throws ConfigError below kLeastCapacityBytes and above 2^50.
[[nodiscard]] std::uint64_t chunk_bytes_for(std::uint64_t capacity_bytes);

/// The geometry for chunks of `chunk_bytes`, at least a page, with up to `max_chunk_slots` slots.
[[nodiscard]] StoreGeometry divided(std::uint64_t chunk_bytes, std::uint32_t num_chunks,
                                    std::uint32_t max_chunk_slots);
/// The geometry for chunks of the size chunk_bytes_for(). Throws as chunk_bytes_for().
[[nodiscard]] StoreGeometry store_geometry(std::uint64_t capacity_bytes);

}  // namespace kvferry::lmcache
