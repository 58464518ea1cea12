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

/// A tier in a file. All processes that name the file share it, and it can outlive them.
struct SharedMemoryOptions {
  std::filesystem::path path;
  /// Bytes that change owner at a time. 0: as an existing file is divided; for a new file, as for
  /// memory of this process only.
  std::uint64_t chunk_bytes = 0;
  cpu_tier::AtExit at_exit = cpu_tier::AtExit::kKeep;
  /// The share of the memory in use, in proportion to the others' weights.
  std::uint32_t weight = 1;
  /// Most bytes of it; 0: all.
  std::uint64_t bytes_limit = 0;
  /// How long the device of another process could continue to write after that process has ended.
  std::chrono::nanoseconds grace = cpu_tier::TierDirectory::Identity().grace;
};

struct MemoryOptions {
  /// Bytes of the memory, for all processes that share it together.
  std::uint64_t capacity_bytes = 0;
  /// The NUMA node of the memory; unset: wherever the kernel puts it.
  std::optional<std::uint32_t> numa_node = std::nullopt;
  /// Unset: the best available kind. A file has the pages of its file system.
  std::optional<cpu_tier::PageKind> pages = std::nullopt;
  /// Unset: memory of this process only, which is freed with it.
  std::optional<SharedMemoryOptions> shared = std::nullopt;
};

/// The memory of an object store: the chunks of an arena, which become ready in order and stay
/// ready. Thread-safe, except for its growth. The store uses the contents of the chunks.
class ChunkMemory {
 public:
  /// No chunk is ready at first. The arena has the geometry's chunks, from `source`. `tier` is the
  /// tier to which the source belongs; null if this process has all chunks. Throws as
  /// cpu_tier::Arena.
  ChunkMemory(StoreGeometry geometry, std::unique_ptr<cpu_tier::ArenaSource> source,
              cpu_tier::ArenaOptions options, std::unique_ptr<cpu_tier::JoinedTier> tier = nullptr);
  ~ChunkMemory();
  ChunkMemory(const ChunkMemory&) = delete;
  ChunkMemory& operator=(const ChunkMemory&) = delete;

  /// Makes the next chunks ready: at most `most_bytes`, but at least one piece. Throws as
  /// cpu_tier::Arena.
  void grow(std::uint64_t most_bytes);
  /// Starts a thread that makes the rest ready. grow() must not be called any more.
  void grow_in_background();

  [[nodiscard]] const StoreGeometry& geometry() const { return geometry_; }
  [[nodiscard]] std::byte* chunk(ChunkId chunk) const {
    return begin_ + chunk.value() * geometry_.chunk_bytes;
  }
  /// The record of slot `index`, for any slot size of the chunk.
  [[nodiscard]] SlotRecord& record(ChunkId chunk, std::uint32_t index) const {
    return *reinterpret_cast<SlotRecord*>(this->chunk(chunk.next()) - (index + 1) * kRecordBytes);
  }
  /// The tier's metadata: which store has which chunk, and what they hold; null: this process has
  /// all chunks.
  [[nodiscard]] cpu_tier::TierDirectory* directory() const { return directory_; }

  /// Number of chunks that can be used.
  [[nodiscard]] std::uint32_t num_ready() const;
  /// Why the other chunks will not become ready, and other warnings for the user; usually empty.
  [[nodiscard]] std::string warning() const;
  /// The kind and place of the pages; for a log.
  [[nodiscard]] std::string description() const;

 private:
  const StoreGeometry geometry_;
  /// Declared first, so the tier is left last.
  const std::unique_ptr<cpu_tier::JoinedTier> tier_;
  cpu_tier::TierDirectory* const directory_;
  /// Devices touch only LMCache's own memory, so this memory is registered with no device.
  const std::unique_ptr<gpu::Device> device_;
  const std::unique_ptr<cpu_tier::Arena> arena_;
  std::byte* const begin_;
  /// Last member: it ends before the arena that it grows.
  std::unique_ptr<cpu_tier::ArenaGrowth> growth_;
};

/// Makes the first 2 GiB ready, and starts a thread that makes the rest ready. It joins shared
/// memory as an engine does, in a name space of object stores. Throws ConfigError and ResourceError
/// as cpu_tier::Arena and cpu_tier::JoinedTier.
[[nodiscard]] std::unique_ptr<ChunkMemory> make_memory(const MemoryOptions& options);

}  // namespace kvferry::lmcache
