// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "block_tag.hpp"
#include "piece.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace kvferry::transfer {

/// The slots whose bytes this engine wrote or checked, and what it knows of them: 24 bytes for each
/// slot. By place in the arena, because a chunk can change its class. Used by the transfer thread
/// only.
class KnownBlocks {
 public:
  struct Known {
    std::uint64_t tag = kNoTag;  ///< kNoTag: nothing is known.
    std::uint64_t sum = 0;       ///< gpu/tag_sum.hpp.
    bool is_own = false;         ///< This engine wrote it.
  };
  struct Place {
    SlabClassId slab_class;
    SlotId slot;
    Known known;
  };

  /// `is_used`: whether it keeps anything.
  explicit KnownBlocks(bool is_used) : is_used_(is_used) {}

  /// The store is about to write its slots.
  void forget(const Piece& store);
  /// Block `at` of the piece has this tag and this sum in its slot.
  void know(const Piece& piece, std::size_t at, const Known& known);
  [[nodiscard]] Known find(const Piece& piece, const BlockSlot& block) const;
  /// The next place that this engine wrote, in a round over all. `num_looked_at` bounds how
  /// many it looks at; nothing if this engine wrote none of those.
  [[nodiscard]] std::optional<Place> next(std::size_t num_looked_at);
  /// Nothing is known of a place that next() gave.
  void doubt(const Place& place, std::uint32_t slots_per_chunk);

 private:
  struct Chunk {
    SlabClassId of;
    std::vector<Known> slots;
  };

  [[nodiscard]] Known& at(const Piece& piece, SlotId slot);

  const bool is_used_;
  std::vector<Chunk> chunks_;
  // Where next() goes on.
  std::size_t next_chunk_ = 0;
  std::size_t next_index_ = 0;
};

}  // namespace kvferry::transfer
