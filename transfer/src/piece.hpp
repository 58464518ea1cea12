// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/ids.hpp"
#include "kvferry/gpu/device.hpp"
#include "kvferry/transfer/staging_ring.hpp"
#include "kvferry/transfer/transfer_engine.hpp"

#include "block_sums.hpp"

#include <cstdint>
#include <memory>
#include <vector>

namespace kvferry::transfer {

/// The unit that is queued, submitted and waited for. Move-only by intent: it stands for its ring
/// region, which CopyPump gives back to the ring when the piece has ended or was dropped.
struct Piece {
  Piece() = default;
  Piece(Piece&&) = default;
  Piece& operator=(Piece&&) = default;

  TransferId transfer;
  /// The table's number for the piece, from its submission on.
  std::uint64_t number = 0;
  TransferKind kind = TransferKind::kStore;
  SlabClassId slab_class;
  const BlockClass* of = nullptr;  ///< The blocks and slots of the class.
  /// Ascending in slots. In a store, entry i of `region` holds blocks[i].
  std::vector<BlockSlot> blocks;
  /// The ring region of a store; a load's has ticket 0.
  RingRegion region;
  /// The words to which a store's gather adds the sums of `blocks`.
  SumRange sums;
  /// The event that the copy waits for: the gather's of a store, the fence of a load. It is
  /// recorded.
  std::shared_ptr<const gpu::Event> after;
  std::uint64_t bytes = 0;
};

}  // namespace kvferry::transfer
