// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/ids.hpp"
#include "kvferry/cpu_tier/memory/arena_options.hpp"
#include "kvferry/cpu_tier/memory/arena_source.hpp"
#include "kvferry/cpu_tier/memory/huge_pages.hpp"
#include "kvferry/cpu_tier/peers/joined_tier.hpp"
#include "kvferry/cpu_tier/peers/shared_tier.hpp"
#include "kvferry/cpu_tier/peers/tier_directory.hpp"
#include "kvferry/lmcache/slot_record.hpp"
#include "kvferry/lmcache/store_geometry.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

namespace kvferry::gpu {
class Device;
}
namespace kvferry::cpu_tier {
class Arena;
class ArenaGrowth;
}  // namespace kvferry::cpu_tier

namespace kvferry::lmcache {

/// A tier in a file, which all that name it share, and which can outlive them.
struct SharedMemoryOptions {
  std::filesystem::path path;
  /// Bytes that change hands at a time. 0: as a file that is there is divided; of a new one, as a
  /// memory of this process alone.
  std::uint64_t chunk_bytes = 0;
  cpu_tier::AtExit at_exit = cpu_tier::AtExit::kKeep;
  /// Of the memory in use, in proportion to the others'.
  std::uint32_t weight = 1;
  /// Of it, at most; 0: all.
  std::uint64_t bytes_limit = 0;
  /// How long the device of another process may go on writing after that process has ended.
  std::chrono::nanoseconds grace = cpu_tier::TierDirectory::Identity().grace;
};

struct MemoryOptions {
  /// Of all that share it.
  std::uint64_t capacity_bytes = 0;
  /// Where it is to lie; unset: wherever the kernel puts it.
  std::optional<std::uint32_t> numa_node = std::nullopt;
  /// Unset: the best there are. Of a file they are its file system's.
  std::optional<cpu_tier::PageKind> pages = std::nullopt;
  /// Unset: memory of this process alone, which goes with it.
  std::optional<SharedMemoryOptions> shared = std::nullopt;
};

/// The memory of an object store: the chunks of an arena, which become ready in order and stay so.
/// Thread-safe but for its growth: what is in the chunks is the store's.
class ChunkMemory {
 public:
  /// No chunk is ready yet. The arena has the geometry's chunks of `source`; `tier` is what the
  /// source is a part of, null if this process has all chunks. Throws as cpu_tier::Arena.
  ChunkMemory(StoreGeometry geometry, std::unique_ptr<cpu_tier::ArenaSource> source,
              cpu_tier::ArenaOptions options, std::unique_ptr<cpu_tier::JoinedTier> tier = nullptr);
  ~ChunkMemory();
  ChunkMemory(const ChunkMemory&) = delete;
  ChunkMemory& operator=(const ChunkMemory&) = delete;

  /// Makes the next chunks ready: at most `most_bytes`, one piece at least. Throws as
  /// cpu_tier::Arena.
  void grow(std::uint64_t most_bytes);
  /// A thread makes the rest ready; grow() is not called any more.
  void grow_in_background();

  [[nodiscard]] const StoreGeometry& geometry() const { return geometry_; }
  [[nodiscard]] std::byte* chunk(ChunkId chunk) const {
    return begin_ + chunk.value() * geometry_.chunk_bytes;
  }
  /// Of slot `index`, whatever the size of the chunk's slots.
  [[nodiscard]] SlotRecord& record(ChunkId chunk, std::uint32_t index) const {
    return *reinterpret_cast<SlotRecord*>(this->chunk(chunk.next()) - (index + 1) * kRecordBytes);
  }
  /// Which store has which chunk, and what is in them; null: this process has all.
  [[nodiscard]] cpu_tier::TierDirectory* directory() const { return directory_; }

  /// Chunks that can be used.
  [[nodiscard]] std::uint32_t num_ready() const;
  /// Why the others will not become ready, or what else its user is to be told; usually nothing.
  [[nodiscard]] std::string warning() const;
  /// Of what kind of pages, where: for a log.
  [[nodiscard]] std::string description() const;

 private:
  const StoreGeometry geometry_;
  /// Left last.
  const std::unique_ptr<cpu_tier::JoinedTier> tier_;
  cpu_tier::TierDirectory* const directory_;
  /// LMCache's own memory is what devices touch: this is registered with none.
  const std::unique_ptr<gpu::Device> device_;
  const std::unique_ptr<cpu_tier::Arena> arena_;
  std::byte* const begin_;
  /// Last: it ends before what it grows.
  std::unique_ptr<cpu_tier::ArenaGrowth> growth_;
};

/// The first 2 GiB are ready; a thread makes the rest ready. Shared memory is joined as an engine
/// does, in a name space of object stores. Throws ConfigError and ResourceError as cpu_tier::Arena
/// and cpu_tier::JoinedTier do.
[[nodiscard]] std::unique_ptr<ChunkMemory> make_memory(const MemoryOptions& options);

}  // namespace kvferry::lmcache
