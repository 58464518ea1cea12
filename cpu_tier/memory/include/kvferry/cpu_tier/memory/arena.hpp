// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/ids.hpp"
#include "kvferry/cpu_tier/memory/arena_options.hpp"
#include "kvferry/cpu_tier/memory/arena_pages.hpp"
#include "kvferry/cpu_tier/memory/arena_source.hpp"
#include "kvferry/gpu/device.hpp"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

namespace kvferry::cpu_tier {

/// The memory that an arena obtained, compared with its options.
struct ArenaReport {
  PageKind pages = PageKind::kNormal;
  bool gave_up_huge_pages = false;  ///< They came too slowly, so later memory is in normal pages.
  double huge_page_share = 0.0;
  std::optional<std::uint32_t> node;  ///< The preferred one.
  std::optional<double>
      share_on_node;  ///< Unset: no node is preferred, or the kernel does not report it.
};

/// One rank's pinned host memory: `num_chunks` contiguous chunks of `chunk_bytes` each. A chunk is
/// *ready* when it is resident and registered. The first num_first() chunks (by default all) become
/// ready in order, in whole pieces; num_ready() of them have become ready. If can_resize(),
/// retire() returns any piece to the machine, and restore() makes it, or a piece after the first
/// ones, ready again. Otherwise ready chunks stay ready. The mapping has MADV_DONTFORK. One thread
/// at a time grows the arena; meanwhile any thread can read what is ready. The owner quiesces all
/// copies before it destroys the arena. The device outlives it.
///
/// The source provides the bytes and knows whether other processes have them too. The arena counts
/// the ready chunks and registers them with the device. Next to the chunks it has the *tags*, one
/// word for each slot. They count in the budgets, and are not registered with a device.
class Arena {
 public:
  /// Asks the source for the memory and maps it, before any page is touched. Then it makes
  /// num_first() chunks ready or none, as `options.start` says. Throws ConfigError (the size is
  /// zero), ResourceError (with the limit, the request and the remedy), DeviceError (registration),
  /// or the source's errors; then nothing is left behind.
  Arena(gpu::Device& device, std::unique_ptr<ArenaSource> source, std::uint64_t chunk_bytes,
        std::uint32_t num_chunks, const ArenaOptions& options = {});
  /// The same, with memory of this process only.
  Arena(gpu::Device& device, std::uint64_t chunk_bytes, std::uint32_t num_chunks,
        const ArenaOptions& options = {});
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  /// Makes the next chunks ready: at most `most_bytes`, but at least one piece for each process
  /// with which the source populates the memory (at the first call, one piece). Returns how many
  /// chunks became ready: 0 if all are ready, or if it was stopped. Throws as the constructor; then
  /// it undoes its own work, and chunks that were ready stay ready.
  std::uint32_t grow(std::uint64_t most_bytes, const std::stop_token& stop = {});
  /// Returns whole pieces to the machine: unregisters them and releases their pages. Skips pieces
  /// that are not registered. Until restore(), the caller keeps every device from touching them and
  /// from getting their addresses. Only if can_resize(), and only on the thread that grows the
  /// arena. If the device is lost, it throws DeviceError and returns no piece.
  void retire(ChunkRange chunks);
  /// Makes whole pieces ready that are not. Returns false if it was stopped. Throws as grow(). In
  /// both cases it undoes its own work; pieces that were ready before stay ready. Only if
  /// can_resize(), and only on the thread that grows the arena, after the growth.
  [[nodiscard]] bool restore(ChunkRange chunks, const std::stop_token& stop = {});
  /// Whether pieces can be returned to the machine: the options allow it, and the pages do not come
  /// from the pool of huge pages.
  [[nodiscard]] bool can_resize() const {
    return resizing_ == ArenaResizing::kByPieces && source_->can_give_back();
  }
  /// Declares that no more chunks will become ready, and withdraws the claim on memory for them.
  /// Called by the thread that grows the arena.
  void end_growth() noexcept;
  /// How long the last grow() waited for other processes.
  [[nodiscard]] std::chrono::nanoseconds waited() const { return waited_; }
  /// Call this when all ranks of the node have started, so no rank needs to find this one's memory
  /// any more. Call it after the growth has ended; any number of times.
  void withdraw_claim() noexcept {
    grant_.claim.reset();
    source_->withdraw();
  }
  /// Call this when no device touches the arena any more, so that other processes with the same
  /// memory do not need this process. The memory stays mapped. Call it after the growth has ended;
  /// any number of times.
  void leave() noexcept { source_->leave(); }

  [[nodiscard]] std::uint64_t chunk_bytes() const { return shape_.chunk_bytes; }
  /// Fewer than requested only if the source granted fewer.
  [[nodiscard]] std::uint32_t num_chunks() const { return shape_.num_chunks; }
  /// Number of chunks that grow() makes ready.
  [[nodiscard]] std::uint32_t num_first() const { return num_first_; }
  /// Number of chunks that are resident and registered now.
  [[nodiscard]] std::uint32_t num_usable() const {
    return num_usable_.load(std::memory_order_relaxed);
  }
  /// How far grow() has come. Chunks that were retired since are included.
  [[nodiscard]] std::uint32_t num_ready() const {
    return num_ready_.load(std::memory_order_acquire);
  }
  /// Whether the chunk is resident and registered now. False as soon as retire() starts on it.
  [[nodiscard]] bool is_ready(ChunkId chunk) const {
    return chunk.value() < shape_.num_chunks &&
           piece_device_addresses_[piece_of(chunk).value()].load(std::memory_order_acquire) != 0;
  }
  /// Host address of a chunk. Chunks are contiguous.
  [[nodiscard]] std::uintptr_t chunk_address(ChunkId chunk) const {
    return pages_.mapping().address() + std::uint64_t{chunk.value()} * shape_.chunk_bytes;
  }
  /// The device address of a ready chunk. Contiguous only within a piece.
  [[nodiscard]] std::uintptr_t chunk_device_address(ChunkId chunk) const {
    return piece_device_addresses_[piece_of(chunk).value()].load(std::memory_order_acquire) +
           std::uint64_t{chunk.value() % grant_.chunks_per_piece} * shape_.chunk_bytes;
  }
  /// Number of tags of each chunk; 0: it has none.
  [[nodiscard]] std::uint32_t tags_per_chunk() const { return shape_.tags_per_chunk; }
  /// Tag `index` < tags_per_chunk() of a chunk that was ready once. It is zero until it is written,
  /// and again when the chunk is retired.
  [[nodiscard]] std::atomic<std::uint64_t>& tag(ChunkId chunk, std::uint32_t index) const {
    return pages_.tags()[std::uint64_t{chunk.value()} * shape_.tags_per_chunk + index];
  }
  /// A copy must not straddle chunks of different pieces.
  [[nodiscard]] PieceId piece_of(ChunkId chunk) const {
    return PieceId(chunk.value() / grant_.chunks_per_piece);
  }
  [[nodiscard]] std::uint32_t chunks_per_piece() const { return grant_.chunks_per_piece; }
  /// Why the memory is on this NUMA node.
  [[nodiscard]] const std::string& placement_reason() const { return pages_.placement().reason; }
  /// Warnings for the user, in full sentences; usually empty. Complete after the first grow().
  /// Until then only the thread that grows the arena can read it.
  [[nodiscard]] const std::vector<std::string>& warnings() const { return grant_.warnings; }
  /// Describes the ready chunks. Reads /proc, which takes milliseconds.
  [[nodiscard]] ArenaReport report() const;

 private:
  /// The end of the chunks that become ready next.
  [[nodiscard]] ChunkId end_of_step(std::uint32_t first, std::uint64_t most_bytes) const;
  /// Adds a warning if the first `bytes` came so slowly that a user would notice it at the start.
  void warn_of_slow_memory(std::uint64_t bytes, std::chrono::nanoseconds took);
  void register_chunks(ChunkRange chunks);
  /// The chunks of the piece, as far as the arena reaches.
  [[nodiscard]] ChunkRange chunks_of(PieceId piece) const;
  /// The end of the pieces that overlap the range.
  [[nodiscard]] PieceId end_of_pieces(ChunkRange chunks) const {
    return PieceId((chunks.end.value() + grant_.chunks_per_piece - 1) / grant_.chunks_per_piece);
  }
  /// Returns false if it was stopped.
  [[nodiscard]] bool restore_piece(PieceId piece, const std::stop_token& stop);
  void unregister_piece(PieceId piece);
  void clear_tags(ChunkRange chunks) const;

  gpu::Device& device_;
  const ArenaResizing resizing_;
  const std::uint64_t max_registration_bytes_;
  const double slow_bytes_per_second_;
  const std::chrono::nanoseconds long_wait_;
  /// Declared before the mapping and the claim, which are destroyed first.
  const std::unique_ptr<ArenaSource> source_;
  ArenaGrant grant_;
  const ArenaShape shape_;
  const std::uint32_t num_first_;
  ArenaPages pages_;
  /// 0 if the piece is not ready.
  std::vector<std::atomic<std::uintptr_t>> piece_device_addresses_;
  std::atomic<std::uint32_t> num_ready_{0};
  std::atomic<std::uint32_t> num_usable_{0};
  std::chrono::nanoseconds waited_{0};
  /// Keyed by the first piece of each. Declared after the mapping, so that every piece is
  /// unregistered before the memory is unmapped, even if the construction fails.
  std::vector<std::unique_ptr<gpu::HostRegistration>> registrations_;
};

}  // namespace kvferry::cpu_tier
