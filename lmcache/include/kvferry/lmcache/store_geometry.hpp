// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

/// How the memory of an object store is divided: into chunks of one size, each of which has slots
/// of one size in front and their records behind.
///
///     chunk:  | slot 0 | slot 1 | ... |   left over   | ... | record 1 | record 0 |
///
/// Record i is at the same place whatever the size of the slots, so that a chunk can change its
/// class without anything else moving.
namespace kvferry::lmcache {

struct StoreGeometry {
  std::uint64_t chunk_bytes = 0;  ///< Slots and records; whole pages of 4 KiB.
  std::uint32_t num_chunks = 0;
  /// Of the smallest slots there are, so that no class has more than kMaxSlotsPerClass of them:
  /// each costs metadata in every class that could have all of the memory.
  std::uint64_t least_slot_bytes = 0;
  bool operator==(const StoreGeometry&) const = default;
};

inline constexpr std::uint64_t kRecordBytes = 256;
inline constexpr std::uint64_t kMaxSlotsPerClass = std::uint64_t{1} << 20U;
/// Less cannot be divided sensibly.
inline constexpr std::uint64_t kLeastCapacityBytes = std::uint64_t{1} << 20U;

/// For a store of at most `capacity_bytes`: about 64 chunks, each of 32 MiB to 1 GiB, but at least
/// eight: they are what sizes are given room in. An object has at most one chunk. Throws
/// ConfigError below kLeastCapacityBytes and above 2^50.
[[nodiscard]] StoreGeometry store_geometry(std::uint64_t capacity_bytes);

/// Slots in a chunk, each with its record; 0 if not one fits.
[[nodiscard]] std::uint32_t slots_per_chunk(const StoreGeometry& geometry,
                                            std::uint64_t slot_bytes);

/// The bytes of the slot for a value of `value_bytes`, whose key has `key_bytes`; nothing if no
/// chunk holds it. Keys that do not fit into a record lie behind the value.
[[nodiscard]] std::optional<std::uint64_t> slot_bytes_of(const StoreGeometry& geometry,
                                                         std::uint64_t value_bytes,
                                                         std::uint64_t key_bytes);

}  // namespace kvferry::lmcache
