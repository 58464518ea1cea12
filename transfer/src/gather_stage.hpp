// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/gpu/device.hpp"
#include "kvferry/transfer/staging_ring.hpp"

#include "block_sums.hpp"
#include "piece.hpp"

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace kvferry::transfer {

/// The result of one gather().
struct GatherResult {
  std::vector<Piece> pieces;       ///< Launched and marked by an event; copy or drain them.
  std::uint32_t num_gathered = 0;  ///< Blocks taken, including those of a failed launch.
  std::string failure;             ///< Why a launch failed; empty otherwise.
};

/// The first half of a store, on the engine's thread: from the pool into the ring. It does not wait
/// for copies. The ring's lock is the only lock of this component that it takes, and never over a
/// device call.
class GatherStage {
 public:
  /// `sums` is null if blocks get no tags.
  GatherStage(gpu::Device& device, StagingRing& ring, const BlockSums* sums,
              std::uint64_t piece_bytes)
      : device_(device), ring_(ring), sums_(sums), piece_bytes_(piece_bytes) {}

  [[nodiscard]] GatherResult gather(gpu::Stream& compute, TransferId transfer,
                                    SlabClassId slab_class, const BlockClass& of,
                                    std::span<const BlockSlot> blocks);

 private:
  [[nodiscard]] std::vector<Piece> take_ring(TransferId transfer, SlabClassId slab_class,
                                             const BlockClass& of,
                                             std::span<const BlockSlot> blocks);
  /// Makes one launch and its event for pieces of adjacent regions. Returns an empty text, or why
  /// it failed; then the ring entries are given back or quarantined.
  [[nodiscard]] std::string launch(gpu::Stream& compute, std::span<Piece> pieces);
  /// Submits the gather, which also sums the blocks if tags are wanted. Sets `launched` when work
  /// that writes the ring or the sums is in the stream, also if a later operation throws.
  void gather_into(gpu::Stream& compute, std::span<Piece> pieces, std::span<const BlockId> ids,
                   bool& launched);

  gpu::Device& device_;
  StagingRing& ring_;
  const BlockSums* const sums_;
  const std::uint64_t piece_bytes_;
};

/// The blocks in ascending order of slots, so that neighbours in the arena are copied as one run.
/// Two blocks in one slot are a broken invariant of a store (TensorRT-LLM#9056); in a load they are
/// legal.
[[nodiscard]] std::vector<BlockSlot> sorted_by_slot(std::span<const BlockSlot> blocks);

}  // namespace kvferry::transfer
