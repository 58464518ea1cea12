// SPDX-License-Identifier: Apache-2.0
#include "kvferry/lmcache/store_geometry.hpp"

#include "kvferry/base/error.hpp"
#include "kvferry/cpu_tier/memory/slab_geometry.hpp"
#include "kvferry/lmcache/slot_record.hpp"

#include <algorithm>
#include <bit>
#include <functional>
#include <limits>
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
/// One part in this many of a chunk is for records. With that, slots whose size is a power of two
/// of at least 256 KiB fill the rest exactly.
constexpr std::uint64_t kRecordShare = 1024;
/// Most doublings from the smallest slot to a chunk. With eight sizes in each doubling there are
/// fewer than Tier::kMaxClasses.
constexpr unsigned kMostDoublings = 14;
/// Every size that slot_bytes_for() returns is a multiple of this.
constexpr std::uint64_t kLeastUnit = 512;

constexpr std::uint64_t low_bit(std::uint64_t bits) { return bits & (~bits + 1); }

}  // namespace

std::uint64_t chunk_bytes_for(std::uint64_t capacity_bytes) {
  if (capacity_bytes < kLeastCapacityBytes || capacity_bytes > kMostCapacityBytes) {
    throw ConfigError("a capacity of " + std::to_string(capacity_bytes) +
                      " bytes; allowed is 1 MiB to 1 PiB: write for example '8GiB'");
  }
  const std::uint64_t slots = std::min(
      std::clamp(std::bit_floor(capacity_bytes / kManyChunks), kLeastChunkBytes, kMostChunkBytes),
      std::bit_floor(capacity_bytes / (kFewChunks + 1)));
  return slots + std::max(slots / kRecordShare, kPageBytes);
}

StoreGeometry divided(std::uint64_t chunk_bytes, std::uint32_t num_chunks,
                      std::uint32_t max_chunk_slots) {
  StoreGeometry geometry{chunk_bytes, num_chunks, {}};
  std::uint64_t wanted =
      std::max({kPageBytes, std::bit_ceil(chunk_bytes * num_chunks / kMaxSlotsPerClass),
                chunk_bytes >> kMostDoublings});
  for (;;) {
    wanted = cpu_tier::slot_bytes_for(wanted);
    const auto count = static_cast<std::uint32_t>(
        std::clamp<std::uint64_t>(chunk_bytes / (wanted + kRecordBytes), 1, max_chunk_slots));
    if (geometry.sizes.empty() || count < geometry.sizes.back().num_slots) {
      const std::uint64_t bytes = chunk_bytes / count - kRecordBytes;
      // The slots take what would be left over in a chunk. They begin at pages if slots of the
      // wanted size would.
      const std::uint64_t unit =
          bytes < wanted ? kLeastUnit : std::min(kPageBytes, low_bit(wanted));
      geometry.sizes.push_back({bytes / unit * unit, count});
    }
    if (count == 1) return geometry;
    ++wanted;
  }
}

StoreGeometry store_geometry(std::uint64_t capacity_bytes) {
  const std::uint64_t chunk_bytes = chunk_bytes_for(capacity_bytes);
  return divided(chunk_bytes, static_cast<std::uint32_t>(capacity_bytes / chunk_bytes),
                 std::numeric_limits<std::uint32_t>::max());
}

std::optional<std::uint32_t> StoreGeometry::size_for(std::uint64_t value_bytes,
                                                     std::uint64_t key_bytes) const {
  const std::uint64_t behind = key_bytes > SlotRecord::kInlineKeyBytes ? key_bytes : 0;
  const std::uint64_t most = sizes.back().bytes;
  if (value_bytes > most || behind > most - value_bytes) return std::nullopt;
  const auto size =
      std::ranges::lower_bound(sizes, value_bytes + behind, std::ranges::less{}, &SlotSize::bytes);
  return static_cast<std::uint32_t>(size - sizes.begin());
}

std::optional<std::uint32_t> StoreGeometry::size_with(std::uint32_t num_slots) const {
  const auto size =
      std::ranges::lower_bound(sizes, num_slots, std::ranges::greater{}, &SlotSize::num_slots);
  if (size == sizes.end() || size->num_slots != num_slots) return std::nullopt;
  return static_cast<std::uint32_t>(size - sizes.begin());
}

}  // namespace kvferry::lmcache
