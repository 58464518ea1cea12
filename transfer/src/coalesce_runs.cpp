// SPDX-License-Identifier: Apache-2.0
#include "coalesce_runs.hpp"

namespace kvferry::transfer {

void RunList::add(const gpu::CopyRun& run, std::uint32_t arena_piece) {
  if (last_arena_piece_ == arena_piece) {
    gpu::CopyRun& last = runs_.back();
    if (last.destination + last.bytes == run.destination &&
        last.source + last.bytes == run.source) {
      last.bytes += run.bytes;
      return;
    }
  }
  runs_.push_back(run);
  last_arena_piece_ = arena_piece;
}

std::vector<gpu::CopyRun> coalesce_runs(const Piece& piece, const cpu_tier::Arena& arena) {
  RunList runs;
  const gpu::BlockGeometry& geometry = *piece.geometry;
  for (std::size_t i = 0; i < piece.blocks.size(); ++i) {
    const auto [block, slot] = piece.blocks[i];
    const std::uintptr_t host = arena.slot_address(slot);
    const std::uint32_t arena_piece = slot.value() / arena.slots_per_piece();
    if (piece.kind == TransferKind::kStore) {
      const std::uintptr_t entry = piece.region.address + i * piece.region.entry_bytes;
      runs.add({.destination = host, .source = entry, .bytes = geometry.packed_bytes}, arena_piece);
      continue;
    }
    for (std::size_t f = 0; f < geometry.fragments.size(); ++f) {
      runs.add({.destination = geometry.fragment_address(f, block),
                .source = host + geometry.packed_offsets[f],
                .bytes = geometry.fragments[f].bytes},
               arena_piece);
    }
  }
  return std::move(runs).take();
}

}  // namespace kvferry::transfer
