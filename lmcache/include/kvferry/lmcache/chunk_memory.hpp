// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/cpu_tier/huge_pages.hpp"
#include "kvferry/lmcache/slot_record.hpp"
#include "kvferry/lmcache/store_geometry.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>

namespace kvferry::lmcache {

struct MemoryOptions {
  std::uint64_t capacity_bytes = 0;
  /// Where it is to lie; unset: wherever the kernel puts it.
  std::optional<std::uint32_t> numa_node;
  /// Unset: the best there are. Of a file they are its file system's.
  std::optional<cpu_tier::PageKind> pages;
};

enum class Contents : std::uint8_t {
  kFresh,
  kKept  ///< What an earlier process stored may be there.
};

/// The memory of an object store: chunks, and for each the size of the slots that it is divided
/// into. Chunks become ready in order and stay so. Move-less; thread-safe where it says nothing
/// else: what is in the chunks is the store's.
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
  /// Bytes of each chunk's slots; 0: it has none, and no records.
  [[nodiscard]] std::span<std::atomic<std::uint64_t>> slot_bytes() const { return slot_bytes_; }

  [[nodiscard]] Contents contents() const { return contents_; }

  /// Chunks that can be used.
  [[nodiscard]] virtual std::uint32_t num_ready() const = 0;
  /// Why the others will not become ready, or what else its user is to be told; usually nothing.
  [[nodiscard]] virtual std::string warning() const = 0;
  /// Of what kind of pages, where: for a log.
  [[nodiscard]] virtual std::string description() const = 0;

 protected:
  explicit ChunkMemory(const StoreGeometry& geometry, Contents contents = Contents::kFresh)
      : geometry_(geometry), contents_(contents) {}
  void set_places(std::byte* begin, std::span<std::atomic<std::uint64_t>> slot_bytes) {
    begin_ = begin;
    slot_bytes_ = slot_bytes;
  }

 private:
  const StoreGeometry geometry_;
  const Contents contents_;
  std::byte* begin_ = nullptr;
  std::span<std::atomic<std::uint64_t>> slot_bytes_;
};

/// Memory of this process alone, which goes with it. The first 2 GiB are ready; a thread makes the
/// rest ready. Throws ConfigError and ResourceError as cpu_tier::Arena does.
[[nodiscard]] std::unique_ptr<ChunkMemory> make_private_memory(const MemoryOptions& options);

/// Memory in a file of shared memory (store_file.hpp), which outlives the process: made if there is
/// none at `path`; else what an earlier process left, if it had the same capacity and layout in the
/// same run of the machine. All of it is ready. One process at a time. Throws ConfigError and
/// ResourceError naming both sides; a file that was there stays as it is then. `proc`: where the
/// machine's boot id is read.
[[nodiscard]] std::unique_ptr<ChunkMemory> make_shared_memory(
    const std::filesystem::path& path, const MemoryOptions& options,
    const std::filesystem::path& proc = "/proc");

}  // namespace kvferry::lmcache
