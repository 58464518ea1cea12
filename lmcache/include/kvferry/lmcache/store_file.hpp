// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/rounded_up.hpp"
#include "kvferry/cpu_tier/file_header.hpp"
#include "kvferry/lmcache/store_geometry.hpp"

#include <atomic>
#include <cstdint>

/// What a store's file holds, so that a later process can serve what an earlier one stored:
///
///     | StoreFileHeader (a page) | slot size of each chunk (whole pages) | chunk 0 | chunk 1 | ...
///
/// Offsets only: every process maps it where it likes. What is in a chunk is said in
/// store_geometry.hpp and slot_record.hpp. Transitions, each in an order in which a process may end
/// anywhere: a record's word says kWriting before anything in its slot changes, and kReadable after
/// all of it has; a chunk's records are free before its slot size becomes 0, and free in their new
/// number before it becomes another.
namespace kvferry::lmcache {

struct StoreFileHeader {
  static constexpr cpu_tier::FileHeader::Magic kMagic = {'K', 'V', 'F', 'E', 'R', 'R', 'Y', 'L'};
  /// Goes up with every change of what this file declares, or of what it refers to.
  static constexpr std::uint32_t kVersion = 2;
  static constexpr std::uint64_t kBytes = 4096;

  cpu_tier::FileHeader file;
  std::uint64_t capacity_bytes;
  std::uint64_t chunk_bytes;
  std::uint64_t num_chunks;
  std::uint64_t least_slot_bytes;
  std::uint64_t record_bytes;
};
static_assert(sizeof(StoreFileHeader) <= StoreFileHeader::kBytes);

/// Where the first chunk begins.
[[nodiscard]] constexpr std::uint64_t chunks_offset(const StoreGeometry& geometry) {
  const std::uint64_t table = geometry.num_chunks * sizeof(std::atomic<std::uint64_t>);
  return StoreFileHeader::kBytes + rounded_up(table, StoreFileHeader::kBytes);
}

}  // namespace kvferry::lmcache
