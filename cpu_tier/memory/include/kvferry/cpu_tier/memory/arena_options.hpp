// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/ids.hpp"
#include "kvferry/cpu_tier/memory/huge_pages.hpp"
#include "kvferry/cpu_tier/memory/memory_budget.hpp"
#include "kvferry/cpu_tier/memory/memory_claim.hpp"
#include "kvferry/cpu_tier/memory/memory_placement.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>

namespace kvferry::cpu_tier {

enum class ArenaStart : std::uint8_t {
  kReady,  ///< The constructor makes all chunks ready.
  kEmpty   ///< No chunk is ready; grow() makes them.
};

enum class Shortage : std::uint8_t {
  kRefuse,   ///< An error.
  kTakeLess  ///< As many chunks as this rank's part of what the machine has left holds.
};

enum class ArenaResizing : std::uint8_t {
  kFixed,    ///< What is ready stays so.
  kByPieces  ///< Pieces can be given back and made ready again: each has a registration of its own.
};

/// How an arena gets its memory; where that comes from is its source's matter (arena_source.hpp).
struct ArenaOptions {
  /// Copies do not reach over the end of a piece, and registrations are of whole pieces. 64 MiB is
  /// the least that is worth a registration of its own while an engine serves: a registration may
  /// block launches.
  std::uint64_t pinned_piece_bytes = std::uint64_t{64} << 20;
  /// Most bytes of one registration. 2 GiB: one call over hundreds of GiB blocks CUDA in every
  /// process of the node for minutes (TensorRT-LLM#17773), and from 512 GiB on it fails
  /// (vllm#51081).
  std::uint64_t max_registration_bytes = std::uint64_t{2} << 30;
  ArenaStart start = ArenaStart::kReady;
  ArenaResizing resizing = ArenaResizing::kFixed;
  /// With kByPieces: chunks that the arena has at first, rounded up to whole pieces. The memory of
  /// the others is neither claimed nor touched before Arena::restore(). 0: all.
  std::uint32_t start_chunks = 0;
  /// Unset: of the pool if it has enough, by its cgroups too; else transparent ones for as long as
  /// those come quickly.
  std::optional<PageKind> pages = std::nullopt;
  /// Transparent huge pages that come slower than this, all threads together, come from a kernel
  /// that moves memory about to make them: gigabytes per minute were seen, where normal pages come
  /// at gigabytes per second. What is populated later is normal pages then.
  double slow_bytes_per_second = 256e6;
  /// The owner of the arena waits for its first memory. A wait from here on at a rate below
  /// `slow_bytes_per_second` is a warning (see Arena::warnings()).
  std::chrono::nanoseconds long_wait = std::chrono::seconds(2);
  MemoryPlacement placement = {};
  /// That populate; 0: one for each processor of the node, or of the machine, and at most 16.
  std::uint32_t num_threads = 0;
  /// The ranks whose arenas are made on this node, this one's included.
  ClaimGroup group = {};
  Shortage shortage = Shortage::kRefuse;
  /// Where the memory budget is read from.
  MachineRoot machine = {};
};

/// Contiguous chunks of one size.
struct ArenaShape {
  std::uint64_t chunk_bytes = 0;
  std::uint32_t num_chunks = 0;

  [[nodiscard]] std::uint64_t bytes() const { return chunk_bytes * num_chunks; }
};

/// Chunks that follow each other.
struct ChunkRange {
  ChunkId begin;
  ChunkId end;  ///< The one after the last.
};

/// Chunks in a piece: as many as fit into `pinned_piece_bytes` such that a piece ends where a page
/// and a chunk end, because no copy may straddle two registrations and no page be in two. At least
/// one such multiple: pieces are larger than asked for where lcm(chunk_bytes, page_bytes) is. All
/// arguments > 0.
[[nodiscard]] std::uint64_t chunks_per_piece(std::uint64_t chunk_bytes, std::uint64_t page_bytes,
                                             std::uint64_t pinned_piece_bytes);
/// The same for the machine's pages. An arena that is smaller than a piece is one short piece.
[[nodiscard]] std::uint32_t chunks_per_piece(const ArenaShape& shape,
                                             std::uint64_t pinned_piece_bytes);

/// Chunks that an arena of this shape has at first. Known before its pieces are, so not rounded.
[[nodiscard]] inline std::uint32_t first_chunks(const ArenaShape& shape,
                                                const ArenaOptions& options) {
  const bool has_all = options.resizing == ArenaResizing::kFixed || options.start_chunks == 0;
  return has_all ? shape.num_chunks : std::min(options.start_chunks, shape.num_chunks);
}

}  // namespace kvferry::cpu_tier
