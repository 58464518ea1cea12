// SPDX-License-Identifier: Apache-2.0
#include "known_blocks.hpp"

namespace kvferry::transfer {

KnownBlocks::Known& KnownBlocks::at(const Piece& piece, SlotId slot) {
  const cpu_tier::SlotPlace place = piece.of->slots.place(slot);
  if (place.chunk.value() >= chunks_.size()) chunks_.resize(place.chunk.value() + 1);
  Chunk& chunk = chunks_[place.chunk.value()];
  if (chunk.slots.empty() || chunk.of != piece.slab_class) {
    chunk.of = piece.slab_class;
    chunk.slots.assign(piece.of->slots.slots_per_chunk(), Known{});
  }
  return chunk.slots[place.index];
}

void KnownBlocks::forget(const Piece& store) {
  if (!is_used_) return;
  for (const BlockSlot& block : store.blocks) at(store, block.slot) = Known{};
}

void KnownBlocks::know(const Piece& piece, const BlockSlot& block, const Known& known) {
  if (is_used_) at(piece, block.slot) = known;
}

KnownBlocks::Known KnownBlocks::find(const Piece& piece, const BlockSlot& block) const {
  const cpu_tier::SlotPlace place = piece.of->slots.place(block.slot);
  if (place.chunk.value() >= chunks_.size()) return {};
  const Chunk& chunk = chunks_[place.chunk.value()];
  if (chunk.slots.empty() || chunk.of != piece.slab_class) return {};
  return chunk.slots[place.index];
}

std::optional<KnownBlocks::Place> KnownBlocks::next(std::size_t num_looked_at) {
  for (; num_looked_at > 0 && !chunks_.empty(); --num_looked_at) {
    if (next_chunk_ >= chunks_.size()) next_chunk_ = 0;
    const Chunk& chunk = chunks_[next_chunk_];
    if (next_index_ >= chunk.slots.size()) {
      ++next_chunk_;
      next_index_ = 0;
      continue;
    }
    const std::size_t index = next_index_++;
    if (!chunk.slots[index].own_sum) continue;
    const cpu_tier::SlotPlace place{ChunkId(static_cast<std::uint32_t>(next_chunk_)),
                                    static_cast<std::uint32_t>(index)};
    const auto slot = static_cast<std::uint32_t>(next_chunk_ * chunk.slots.size() + index);
    return Place{place, chunk.of, SlotId(slot), chunk.slots[index]};
  }
  return std::nullopt;
}

void KnownBlocks::doubt(const Place& place) {
  chunks_[place.at.chunk.value()].slots[place.at.index] = Known{};
}

}  // namespace kvferry::transfer
