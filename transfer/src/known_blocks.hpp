// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/cpu_tier/memory/slab_geometry.hpp"
#include "kvferry/gpu/tag_sum.hpp"

#include "piece.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace kvferry::transfer {

/// The slots whose bytes this engine wrote or checked, and what it knows about them: 24 bytes for
/// each slot. They are stored by place in the arena, because a chunk can change its class. Used by
/// the transfer thread only.
class KnownBlocks {
 public:
  struct Known {
    std::uint64_t tag = gpu::kNoTag;  ///< kNoTag if nothing is known.
    /// The tag_sum() of its bytes; set if this engine wrote them.
    std::optional<std::uint64_t> own_sum = std::nullopt;
  };
  struct Place {
    cpu_tier::SlotPlace at;
    SlabClassId slab_class;
    SlotId slot;
    Known known;
  };

  /// If `is_used` is false, it keeps nothing.
  explicit KnownBlocks(bool is_used) : is_used_(is_used) {}

  /// Forgets the slots of a store, which is about to write them.
  void forget(const Piece& store);
  void know(const Piece& piece, const BlockSlot& block, const Known& known);
  [[nodiscard]] Known find(const Piece& piece, const BlockSlot& block) const;
  /// The next place that this engine wrote, in a round over all places. It looks at most at
  /// `num_looked_at` of them; nothing if this engine wrote none of these.
  [[nodiscard]] std::optional<Place> next(std::size_t num_looked_at);
  /// Forgets a place that next() returned.
  void doubt(const Place& place);

 private:
  struct Chunk {
    SlabClassId of;
    std::vector<Known> slots;
  };

  [[nodiscard]] Known& at(const Piece& piece, SlotId slot);

  const bool is_used_;
  std::vector<Chunk> chunks_;
  // The place at which next() continues.
  std::size_t next_chunk_ = 0;
  std::size_t next_index_ = 0;
};

}  // namespace kvferry::transfer
