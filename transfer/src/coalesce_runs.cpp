// SPDX-License-Identifier: Apache-2.0
#include "coalesce_runs.hpp"

namespace kvferry::transfer {

void RunList::add(const gpu::CopyRun& run, PieceId arena_piece) {
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

std::vector<gpu::CopyRun> coalesce_runs(const Piece& piece) {
  RunList runs;
  const gpu::BlockGeometry& geometry = piece.of->geometry;
  for (std::size_t i = 0; i < piece.blocks.size(); ++i) {
    const auto [block, slot, identity] = piece.blocks[i];
    const std::uintptr_t host = piece.of->slots.device_address(slot);
    const PieceId arena_piece = piece.of->slots.piece_of(slot);
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

std::vector<gpu::CopyRun> staging_runs(const Piece& load, std::span<const RingRegion> staging) {
  RunList runs;
  const std::uint64_t bytes = load.of->geometry.packed_bytes;
  auto next = load.blocks.begin();
  for (const RingRegion& region : staging) {
    for (std::uint32_t i = 0; i < region.num_entries; ++i, ++next) {
      runs.add({.destination = region.address + i * region.entry_bytes,
                .source = load.of->slots.device_address(next->slot),
                .bytes = bytes},
               load.of->slots.piece_of(next->slot));
    }
  }
  return std::move(runs).take();
}

std::vector<PackedStretch> slot_stretches(const Piece& load) {
  const std::uint64_t bytes = load.of->geometry.packed_bytes;
  std::vector<PackedStretch> stretches;
  std::uintptr_t end = 0;
  PieceId last_arena_piece;
  for (const auto& [block, slot, identity] : load.blocks) {
    const std::uintptr_t address = load.of->slots.device_address(slot);
    const PieceId arena_piece = load.of->slots.piece_of(slot);
    if (stretches.empty() || address != end || arena_piece != last_arena_piece) {
      stretches.push_back({address, {}});
    }
    stretches.back().blocks.push_back(block);
    end = address + bytes;
    last_arena_piece = arena_piece;
  }
  return stretches;
}

std::vector<PackedStretch> staging_stretches(const Piece& load,
                                             std::span<const RingRegion> staging) {
  std::vector<PackedStretch> stretches;
  auto next = load.blocks.begin();
  for (const RingRegion& region : staging) {
    stretches.push_back({region.address, {}});
    for (std::uint32_t i = 0; i < region.num_entries; ++i, ++next) {
      stretches.back().blocks.push_back(next->block);
    }
  }
  return stretches;
}

}  // namespace kvferry::transfer
