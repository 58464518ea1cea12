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

/// Bytes of a slot's tag.
inline constexpr std::uint64_t kTagBytes = 8;

enum class ArenaStart : std::uint8_t {
  kReady,  ///< The constructor makes all chunks ready.
  kEmpty   ///< No chunk is ready; grow() makes them ready.
};

enum class Shortage : std::uint8_t {
  kRefuse,   ///< An error.
  kTakeLess  ///< As many chunks as fit into this rank's part of the free memory.
};

enum class ArenaResizing : std::uint8_t {
  kFixed,    ///< Ready chunks stay ready.
  kByPieces  ///< Pieces can be retired and restored; each has its own registration.
};

/// How an arena gets its memory. The source (arena_source.hpp) decides where the memory comes from.
struct ArenaOptions {
  /// No copy crosses the end of a piece, and each registration covers whole pieces. 64 MiB is the
  /// smallest size that is worth its own registration while an engine serves, because a
  /// registration can block kernel launches.
  std::uint64_t pinned_piece_bytes = std::uint64_t{64} << 20;
  /// Most bytes of one registration. 2 GiB: one call over hundreds of GiB blocks CUDA in every
  /// process of the node for minutes (TensorRT-LLM#17773), and from 512 GiB on it fails
  /// (vllm#51081).
  std::uint64_t max_registration_bytes = std::uint64_t{2} << 30;
  ArenaStart start = ArenaStart::kReady;
  ArenaResizing resizing = ArenaResizing::kFixed;
  /// With kByPieces: number of chunks that the arena has at first, rounded up to whole pieces. The
  /// memory of the other chunks is neither claimed nor touched before Arena::restore(). 0: all.
  std::uint32_t start_chunks = 0;
  /// Number of *tags* next to each chunk: words with which copies into its slots are checked. There
  /// is one for each slot of the class that has the most slots in a chunk; 0: the slots have no
  /// tags.
  std::uint32_t tags_per_chunk = 0;
  /// Unset: huge pages from the pool, if the pool and the cgroups have enough; otherwise
  /// transparent huge pages, as long as they come quickly.
  std::optional<PageKind> pages = std::nullopt;
  /// If transparent huge pages come more slowly than this (all threads together), the kernel is
  /// moving memory to make them: gigabytes per minute were seen, while normal pages come at
  /// gigabytes per second. Memory that is populated later is then in normal pages.
  double slow_bytes_per_second = 256e6;
  /// The owner of the arena waits for its first memory. A wait of at least this time, at a rate
  /// below `slow_bytes_per_second`, is a warning (see Arena::warnings()).
  std::chrono::nanoseconds long_wait = std::chrono::seconds(2);
  MemoryPlacement placement = {};
  /// Threads that populate; 0: one for each processor of the node, or of the machine, at most 16.
  std::uint32_t num_threads = 0;
  /// The ranks whose arenas are created on this node, including this rank.
  ClaimGroup group = {};
  Shortage shortage = Shortage::kRefuse;
  /// Where the files with the memory limits are.
  MachineRoot machine = {};
};

/// Contiguous chunks of one size, and the tags next to them.
struct ArenaShape {
  std::uint64_t chunk_bytes = 0;
  std::uint32_t num_chunks = 0;
  std::uint32_t tags_per_chunk = 0;

  /// Bytes of the chunks.
  [[nodiscard]] std::uint64_t bytes() const { return chunk_bytes * num_chunks; }
  [[nodiscard]] std::uint64_t tag_bytes() const {
    return std::uint64_t{num_chunks} * tags_per_chunk * kTagBytes;
  }
  /// Bytes that count against the limits of such pages. The tags are in normal pages, so they do
  /// not count against the limits of the pool.
  [[nodiscard]] std::uint64_t bytes_of(PageKind pages) const {
    return bytes() + (pages == PageKind::kPool ? 0 : tag_bytes());
  }
};

/// Consecutive chunks.
struct ChunkRange {
  ChunkId begin;
  ChunkId end;  ///< The one after the last.
};

/// Chunks in a piece: as many as fit into `pinned_piece_bytes` such that every piece ends at the
/// end of a page and of a chunk, because no copy can cross two registrations and no page can be in
/// two. At least lcm(chunk_bytes, page_bytes), even if that is larger than requested. All arguments
/// > 0.
[[nodiscard]] std::uint64_t chunks_per_piece(std::uint64_t chunk_bytes, std::uint64_t page_bytes,
                                             std::uint64_t pinned_piece_bytes);
/// The same for the machine's page size. An arena that is smaller than a piece is one short piece.
[[nodiscard]] std::uint32_t chunks_per_piece(const ArenaShape& shape,
                                             std::uint64_t pinned_piece_bytes);

/// Number of chunks that an arena of this shape has at first. Not rounded, because it is needed
/// before the pieces are known.
[[nodiscard]] inline std::uint32_t first_chunks(const ArenaShape& shape,
                                                const ArenaOptions& options) {
  const bool has_all = options.resizing == ArenaResizing::kFixed || options.start_chunks == 0;
  return has_all ? shape.num_chunks : std::min(options.start_chunks, shape.num_chunks);
}

}  // namespace kvferry::cpu_tier
