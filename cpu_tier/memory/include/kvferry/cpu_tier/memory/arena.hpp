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

/// What was obtained of what was wished for.
struct ArenaReport {
  PageKind pages = PageKind::kNormal;
  bool gave_up_huge_pages = false;  ///< They came too slowly: what came later is normal pages.
  double huge_page_share = 0.0;
  std::optional<std::uint32_t> node;    ///< The preferred one.
  std::optional<double> share_on_node;  ///< Unset: no node preferred, or the kernel does not tell.
};

/// One rank's pinned host memory: `num_chunks` chunks of `chunk_bytes` each, contiguous. Of the
/// first num_first() of them, which are all unless the options say otherwise, num_ready() are
/// resident and registered: they become so in order, in whole pieces. Where pieces can come and go
/// (can_resize()), retire() gives any of them back to the machine, and restore() makes it, or one
/// beyond the first ones, ready; else what is ready stays so. MADV_DONTFORK. One thread at a time
/// grows it, and any may read what is ready meanwhile. The owner quiesces all copies before
/// destroying it. The device outlives it.
///
/// Its source says where the bytes come from, and whether other processes have them too; the arena
/// counts what is ready, and registers it with the device.
class Arena {
 public:
  /// Asks the source for the memory and maps it, before a page is touched; then does what
  /// `options.start` says. Throws ConfigError (nothing to hold), ResourceError (the limit, the
  /// request, the remedy), DeviceError (registration), or as the source says; nothing is left
  /// behind then.
  Arena(gpu::Device& device, std::unique_ptr<ArenaSource> source, std::uint64_t chunk_bytes,
        std::uint32_t num_chunks, const ArenaOptions& options = {});
  /// Of memory of this process alone.
  Arena(gpu::Device& device, std::uint64_t chunk_bytes, std::uint32_t num_chunks,
        const ArenaOptions& options = {});
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  /// Makes the next chunks ready: at most `most_bytes`, one piece of each process at least that the
  /// source populates together. Returns how many became ready: 0 if all are, or if it was stopped.
  /// Throws as the constructor; what it began is rolled back, and what was ready stays so.
  std::uint32_t grow(std::uint64_t most_bytes, const std::stop_token& stop = {});
  /// Gives whole pieces back to the machine: they are unregistered, and their pages released.
  /// Pieces that are not registered are left out. No device touches them, and none will be told of
  /// them before restore(). Only if can_resize(). Called by the thread that grows it. Throws
  /// DeviceError, and nothing is given back, if the device is lost.
  void retire(ChunkRange chunks);
  /// Makes whole pieces ready that are not. False if it was stopped. Throws as grow(). What it
  /// began is rolled back, but for pieces that were ready before. Only if can_resize(). Called by
  /// the thread that grows it, after that.
  [[nodiscard]] bool restore(ChunkRange chunks, const std::stop_token& stop = {});
  /// Whether its pieces can be given back: it was asked for, and the pages are not the pool's.
  [[nodiscard]] bool can_resize() const {
    return resizing_ == ArenaResizing::kByPieces && source_->can_give_back();
  }
  /// No more chunks will become ready: what was claimed for them is others' again. Called by the
  /// thread that grows it.
  void end_growth() noexcept;
  /// How long the last grow() waited for other processes.
  [[nodiscard]] std::chrono::nanoseconds waited() const { return waited_; }
  /// All ranks of the node have started, and need not see any more what this one has. Called when
  /// nobody grows it any more; any number of times.
  void withdraw_claim() noexcept {
    grant_.claim.reset();
    source_->withdraw();
  }
  /// No device touches it any more, so that this process need not be there for others that have the
  /// same memory. It stays mapped. Called when nobody grows it any more; any number of times.
  void leave() noexcept { source_->leave(); }

  [[nodiscard]] std::uint64_t chunk_bytes() const { return shape_.chunk_bytes; }
  /// Fewer than were asked for only where the source granted fewer.
  [[nodiscard]] std::uint32_t num_chunks() const { return shape_.num_chunks; }
  /// Those that grow() makes ready.
  [[nodiscard]] std::uint32_t num_first() const { return num_first_; }
  /// That are resident and registered now.
  [[nodiscard]] std::uint32_t num_usable() const {
    return num_usable_.load(std::memory_order_relaxed);
  }
  /// How far grow() has come. Those that were retired since count, too.
  [[nodiscard]] std::uint32_t num_ready() const {
    return num_ready_.load(std::memory_order_acquire);
  }
  /// Whether it is resident and registered now. False from the moment on in which retire() begins
  /// with it.
  [[nodiscard]] bool is_ready(ChunkId chunk) const {
    return chunk.value() < shape_.num_chunks &&
           piece_device_addresses_[piece_of(chunk).value()].load(std::memory_order_acquire) != 0;
  }
  /// Host address of a chunk. Chunks are contiguous.
  [[nodiscard]] std::uintptr_t chunk_address(ChunkId chunk) const {
    return pages_.mapping().address() + std::uint64_t{chunk.value()} * shape_.chunk_bytes;
  }
  /// The address by which the device knows a ready chunk. Contiguous within a piece only.
  [[nodiscard]] std::uintptr_t chunk_device_address(ChunkId chunk) const {
    return piece_device_addresses_[piece_of(chunk).value()].load(std::memory_order_acquire) +
           std::uint64_t{chunk.value() % grant_.chunks_per_piece} * shape_.chunk_bytes;
  }
  /// A copy must not straddle chunks of different pieces.
  [[nodiscard]] PieceId piece_of(ChunkId chunk) const {
    return PieceId(chunk.value() / grant_.chunks_per_piece);
  }
  [[nodiscard]] std::uint32_t chunks_per_piece() const { return grant_.chunks_per_piece; }
  /// Why it lies where it does.
  [[nodiscard]] const std::string& placement_reason() const { return pages_.placement().reason; }
  /// What its user is to be warned of, in sentences; usually nothing. Complete after the first
  /// grow(): until then the thread that grows the arena alone may read it.
  [[nodiscard]] const std::vector<std::string>& warnings() const { return grant_.warnings; }
  /// Of the chunks that are ready. Reads /proc: milliseconds.
  [[nodiscard]] ArenaReport report() const;

 private:
  /// The one after the last chunk that becomes ready next.
  [[nodiscard]] ChunkId end_of_step(std::uint32_t first, std::uint64_t most_bytes) const;
  /// Adds a warning if the first `bytes` came slowly enough for a user to wonder about the start.
  void warn_of_slow_memory(std::uint64_t bytes, std::chrono::nanoseconds took);
  void register_chunks(ChunkRange chunks);
  /// The piece's, as far as the arena reaches.
  [[nodiscard]] ChunkRange chunks_of(PieceId piece) const;
  /// Those that a range has a part of.
  [[nodiscard]] PieceId end_of_pieces(ChunkRange chunks) const {
    return PieceId((chunks.end.value() + grant_.chunks_per_piece - 1) / grant_.chunks_per_piece);
  }
  /// False if it was stopped.
  [[nodiscard]] bool restore_piece(PieceId piece, const std::stop_token& stop);
  void retire_piece(PieceId piece);

  gpu::Device& device_;
  const ArenaResizing resizing_;
  const std::uint64_t max_registration_bytes_;
  const double slow_bytes_per_second_;
  const std::chrono::nanoseconds long_wait_;
  /// Before the mapping and the claim, which are gone first.
  const std::unique_ptr<ArenaSource> source_;
  ArenaGrant grant_;
  const ArenaShape shape_;
  const std::uint32_t num_first_;
  ArenaPages pages_;
  /// 0: not ready.
  std::vector<std::atomic<std::uintptr_t>> piece_device_addresses_;
  std::atomic<std::uint32_t> num_ready_{0};
  std::atomic<std::uint32_t> num_usable_{0};
  std::chrono::nanoseconds waited_{0};
  /// By the first piece of each. After the mapping, so that every piece is unregistered before the
  /// memory goes, in a failed construction too.
  std::vector<std::unique_ptr<gpu::HostRegistration>> registrations_;
};

}  // namespace kvferry::cpu_tier
