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
  /// The registered piece of the arena in which the host side of the last run lies.
  std::optional<PieceId> last_arena_piece_;
};

/// The coalesced copies of a piece: from ring entries to slots for a store, from slots to the
/// blocks' fragments for a load.
[[nodiscard]] std::vector<gpu::CopyRun> coalesce_runs(const Piece& piece);

/// The coalesced copies of a load's whole slots into staging memory. `staging` has one entry per
/// block, in the order of the blocks.
[[nodiscard]] std::vector<gpu::CopyRun> staging_runs(const Piece& load,
                                                     std::span<const RingRegion> staging);

/// Blocks that one launch can unpack, because their packed bytes are contiguous.
struct PackedStretch {
  std::uintptr_t address = 0;  ///< Of the first packed byte, for the device.
  std::vector<BlockId> blocks;
};

/// A load as scatters straight from the arena: one per stretch of contiguous slots in one
/// registration.
[[nodiscard]] std::vector<PackedStretch> slot_stretches(const Piece& load);
/// A load as scatters from staging memory, one per region.
[[nodiscard]] std::vector<PackedStretch> staging_stretches(const Piece& load,
                                                           std::span<const RingRegion> staging);

}  // namespace kvferry::transfer
