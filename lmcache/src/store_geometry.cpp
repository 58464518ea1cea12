// SPDX-License-Identifier: Apache-2.0
#include "kvferry/lmcache/store_geometry.hpp"

#include "kvferry/base/error.hpp"
#include "kvferry/cpu_tier/slab_geometry.hpp"
#include "kvferry/lmcache/slot_record.hpp"

#include <algorithm>
#include <bit>
#include <string>

namespace kvferry::lmcache {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20U;
constexpr std::uint64_t kPageBytes = 4096;
constexpr std::uint64_t kMostCapacityBytes = std::uint64_t{1} << 50U;
constexpr std::uint64_t kFewChunks = 8;
constexpr std::uint64_t kManyChunks = 64;
constexpr std::uint64_t kLeastChunkBytes = 32 * kMiB;
constexpr std::uint64_t kMostChunkBytes = 1024 * kMiB;
/// Of a chunk, for records: then slots of powers of two from 256 KiB on fill the rest exactly.
constexpr std::uint64_t kRecordShare = 1024;

}  // namespace

StoreGeometry store_geometry(std::uint64_t capacity_bytes) {
  if (capacity_bytes < kLeastCapacityBytes || capacity_bytes > kMostCapacityBytes) {
    throw ConfigError("a capacity of " + std::to_string(capacity_bytes) +
                      " bytes; allowed is 1 MiB to 1 PiB: write for example '8GiB'");
  }
  const std::uint64_t slots = std::min(
      std::clamp(std::bit_floor(capacity_bytes / kManyChunks), kLeastChunkBytes, kMostChunkBytes),
      std::bit_floor(capacity_bytes / (kFewChunks + 1)));
  StoreGeometry geometry;
  geometry.chunk_bytes = slots + std::max(slots / kRecordShare, kPageBytes);
  geometry.num_chunks = static_cast<std::uint32_t>(capacity_bytes / geometry.chunk_bytes);
  geometry.least_slot_bytes =
      std::max(kPageBytes, std::bit_ceil(capacity_bytes / kMaxSlotsPerClass));
  return geometry;
}

std::uint32_t slots_per_chunk(const StoreGeometry& geometry, std::uint64_t slot_bytes) {
  return static_cast<std::uint32_t>(geometry.chunk_bytes / (slot_bytes + kRecordBytes));
}

std::optional<std::uint64_t> slot_bytes_of(const StoreGeometry& geometry, std::uint64_t value_bytes,
                                           std::uint64_t key_bytes) {
  const std::uint64_t most = geometry.chunk_bytes - kRecordBytes;
  const std::uint64_t behind = key_bytes > SlotRecord::kInlineKeyBytes ? key_bytes : 0;
  if (value_bytes > most || behind > most - value_bytes) return std::nullopt;
  const std::uint64_t bytes =
      cpu_tier::slot_bytes_for(std::max(value_bytes + behind, geometry.least_slot_bytes));
  // What the next size up does not leave room for takes the whole chunk.
  return std::min(bytes, most);
}

}  // namespace kvferry::lmcache
