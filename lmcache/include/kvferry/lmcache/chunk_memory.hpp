// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/cpu_tier/memory/huge_pages.hpp"
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
#include <utility>

namespace kvferry::lmcache {

/// A tier in a file, which all that name it share, and which can outlive them.
struct SharedMemoryOptions {
  std::filesystem::path path;
  /// Bytes that change hands at a time. 0: as a file that is there is divided; of a new one, as a
  /// memory of one's own.
  std::uint64_t chunk_bytes = 0;
  cpu_tier::AtExit at_exit = cpu_tier::AtExit::kKeep;
  /// Of the memory in use, in proportion to the others'.
  std::uint32_t weight = 1;
  /// Of it, at most; 0: all.
  std::uint64_t bytes_limit = 0;
  /// How long somebody else's device may go on writing behind his end.
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

/// The memory of an object store: chunks, which become ready in order and stay so. Move-less;
/// thread-safe: what is in the chunks is the store's.
class ChunkMemory {
 public:
  virtual ~ChunkMemory() = default;
  ChunkMemory(const ChunkMemory&) = delete;
  ChunkMemory& operator=(const ChunkMemory&) = delete;

  [[nodiscard]] const StoreGeometry& geometry() const { return geometry_; }
  [[nodiscard]] std::byte* chunk(std::uint32_t number) const {
    return begin_ + number * geometry_.chunk_bytes;
  }
  /// Of slot `index`, whatever the size of the chunk's slots.
  [[nodiscard]] SlotRecord& record(std::uint32_t chunk_number, std::uint32_t index) const {
    return *reinterpret_cast<SlotRecord*>(chunk(chunk_number + 1) - (index + 1) * kRecordBytes);
  }
  /// Who has which chunk, and what is in them; null: this process has all.
  [[nodiscard]] virtual cpu_tier::TierDirectory* directory() const { return nullptr; }

  /// Chunks that can be used.
  [[nodiscard]] virtual std::uint32_t num_ready() const = 0;
  /// Why the others will not become ready, or what else its user is to be told; usually nothing.
  [[nodiscard]] virtual std::string warning() const = 0;
  /// Of what kind of pages, where: for a log.
  [[nodiscard]] virtual std::string description() const = 0;

 protected:
  explicit ChunkMemory(StoreGeometry geometry) : geometry_(std::move(geometry)) {}
  void set_begin(std::byte* begin) { begin_ = begin; }

 private:
  const StoreGeometry geometry_;
  std::byte* begin_ = nullptr;
};

/// The first 2 GiB are ready; a thread makes the rest ready. Shared memory is joined as an engine
/// does, in a name space of object stores. Throws ConfigError and ResourceError as cpu_tier::Arena
/// and cpu_tier::JoinedTier do.
[[nodiscard]] std::unique_ptr<ChunkMemory> make_memory(const MemoryOptions& options);

}  // namespace kvferry::lmcache
