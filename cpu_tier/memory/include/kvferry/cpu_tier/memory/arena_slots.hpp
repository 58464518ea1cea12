// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/ids.hpp"
#include "kvferry/cpu_tier/memory/arena.hpp"
#include "kvferry/cpu_tier/memory/slab_geometry.hpp"

#include <atomic>
#include <cstdint>

namespace kvferry::cpu_tier {

/// The slots of one slab class in the chunks of an arena. place_of() gives the place of a slot. A
/// view; the arena outlives it. As thread-safe as the arena.
class ArenaSlots {
 public:
  /// Throws ConfigError if that many slots do not fit into a chunk, or its chunks have fewer tags.
  ArenaSlots(const Arena& arena, std::uint32_t slots_per_chunk, std::uint64_t slot_bytes);

  [[nodiscard]] std::uint64_t slot_bytes() const { return slot_bytes_; }
  [[nodiscard]] std::uint32_t slots_per_chunk() const { return slots_per_chunk_; }
  [[nodiscard]] SlotPlace place(SlotId slot) const { return place_of(slot, slots_per_chunk_); }
  /// Number of slots in the chunks that are ready now.
  [[nodiscard]] std::uint64_t num_ready() const {
    return std::uint64_t{arena_->num_usable()} * slots_per_chunk_;
  }
  [[nodiscard]] bool is_ready(SlotId slot) const { return arena_->is_ready(place(slot).chunk); }
  /// Host address of a slot.
  [[nodiscard]] std::uintptr_t address(SlotId slot) const {
    const SlotPlace at = place(slot);
    return arena_->chunk_address(at.chunk) + at.index * slot_bytes_;
  }
  /// The device address of a slot in a ready chunk.
  [[nodiscard]] std::uintptr_t device_address(SlotId slot) const {
    const SlotPlace at = place(slot);
    return arena_->chunk_device_address(at.chunk) + at.index * slot_bytes_;
  }
  /// Whether each slot has a tag.
  [[nodiscard]] bool has_tags() const { return arena_->tags_per_chunk() != 0; }
  /// The tag of a slot in a chunk that was ready once. Slots of all classes with the same place in
  /// a chunk share one word. All processes that have the slot's bytes have its tag too. It is zero
  /// until it is written. Only if has_tags().
  [[nodiscard]] std::atomic<std::uint64_t>& tag(SlotId slot) const {
    const SlotPlace at = place(slot);
    return arena_->tag(at.chunk, at.index);
  }
  /// The registered piece in which it lies. No copy may cross the end of the piece.
  [[nodiscard]] PieceId piece_of(SlotId slot) const { return arena_->piece_of(place(slot).chunk); }

 private:
  const Arena* arena_;
  std::uint32_t slots_per_chunk_;
  std::uint64_t slot_bytes_;
};

}  // namespace kvferry::cpu_tier
