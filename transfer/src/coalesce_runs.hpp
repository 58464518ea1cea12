// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/gpu/device.hpp"

#include "piece.hpp"

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace kvferry::transfer {

/// A list of copy runs in which neighbours that are adjacent on both sides are one run. Every run
/// lies in one registered piece of the arena.
class RunList {
 public:
  /// Appends a copy whose host side lies in registered piece `arena_piece`.
  void add(const gpu::CopyRun& run, PieceId arena_piece);
  [[nodiscard]] std::vector<gpu::CopyRun> take() && { return std::move(runs_); }

 private:
  std::vector<gpu::CopyRun> runs_;
  /// Where the host side of the last run lies.
  std::optional<PieceId> last_arena_piece_;
};

/// The copies of a piece, coalesced: ring entries to slots of a store, slots to the blocks'
/// fragments of a load.
[[nodiscard]] std::vector<gpu::CopyRun> coalesce_runs(const Piece& piece);

/// The copies of a load into staging memory, whole slots, coalesced: `staging` has an entry for
/// each of its blocks, in order.
[[nodiscard]] std::vector<gpu::CopyRun> staging_runs(const Piece& load,
                                                     std::span<const RingRegion> staging);

/// Blocks that one launch can unpack: their packed bytes lie one behind the other.
struct PackedStretch {
  std::uintptr_t address = 0;  ///< The device's.
  std::vector<BlockId> blocks;
};

/// A load as scatters straight from the arena: one per stretch of slots that lie one behind the
/// other in one registration.
[[nodiscard]] std::vector<PackedStretch> slot_stretches(const Piece& load);
/// A load as scatters from staging memory: one per region.
[[nodiscard]] std::vector<PackedStretch> staging_stretches(const Piece& load,
                                                           std::span<const RingRegion> staging);

}  // namespace kvferry::transfer
