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

/// What one gather() brought about.
struct GatherResult {
  std::vector<Piece> pieces;       ///< Launched and marked by an event: to be copied or drained.
  std::uint32_t num_gathered = 0;  ///< Blocks taken, those of a failed launch included.
  std::string failure;             ///< Why a launch failed; empty otherwise.
};

/// The first half of a store, on the engine's thread: from the pool into the ring. It waits
/// for no copy. Of this component's locks it takes the ring's alone, and never over a device call.
class GatherStage {
 public:
  /// `sums`: null if blocks get no tags.
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
  /// One launch and its event for pieces of adjacent regions. Empty, or why it failed; then their
  /// ring entries are given back or quarantined.
  [[nodiscard]] std::string launch(gpu::Stream& compute, std::span<Piece> pieces);
  /// Submits the gather, which also adds up the blocks' sums if they are wanted.
  void gather_into(gpu::Stream& compute, std::span<Piece> pieces, std::span<const BlockId> ids);

  gpu::Device& device_;
  StagingRing& ring_;
  const BlockSums* const sums_;
  const std::uint64_t piece_bytes_;
};

/// Ascending in slots, so that neighbours in the arena are copied as one run. Two blocks in one
/// slot are a broken invariant of a store (TensorRT-LLM#9056); of a load they are legal.
[[nodiscard]] std::vector<BlockSlot> sorted_by_slot(std::span<const BlockSlot> blocks);

}  // namespace kvferry::transfer
