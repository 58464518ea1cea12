// SPDX-License-Identifier: Apache-2.0
// How an Arena gives pieces back to the machine and restores them, while others serve.
#include "kvferry/base/check.hpp"
#include "kvferry/base/error.hpp"
#include "kvferry/base/test_hooks.hpp"
#include "kvferry/cpu_tier/memory/arena.hpp"

#include <algorithm>
#include <exception>
#include <vector>

namespace kvferry::cpu_tier {

ChunkRange Arena::chunks_of(PieceId piece) const {
  const std::uint32_t first = piece.value() * grant_.chunks_per_piece;
  return {ChunkId(first), ChunkId(std::min(first + grant_.chunks_per_piece, shape_.num_chunks))};
}

void Arena::retire(ChunkRange chunks) {
  KVFERRY_CHECK(can_resize(), "an arena that cannot be resized is to give pieces back");
  if (const auto loss = device_.lost()) {
    throw DeviceError("host memory is kept because its device is lost: " + loss->why);
  }
  for (PieceId piece = piece_of(chunks.begin); piece < end_of_pieces(chunks);
       piece = piece.next()) {
    if (registrations_[piece.value()]) unregister_piece(piece);
    KVFERRY_PAUSE_POINT("arena.before_release");
    source_->give_back(pages_, chunks_of(piece));
  }
}

void Arena::unregister_piece(PieceId piece) {
  const ChunkRange chunks = chunks_of(piece);
  piece_device_addresses_[piece.value()].store(0, std::memory_order_release);
  clear_tags(chunks);
  KVFERRY_PAUSE_POINT("arena.before_unregistering");
  registrations_[piece.value()].reset();
  num_usable_.fetch_sub(chunks.end.value() - chunks.begin.value(), std::memory_order_relaxed);
}

// The tags are cleared before the bytes go. So a reader that finds the same tag after it has read
// the bytes knows that they were complete.
void Arena::clear_tags(ChunkRange chunks) const {
  for (ChunkId chunk = chunks.begin; chunk < chunks.end; chunk = chunk.next()) {
    for (std::uint32_t i = 0; i < shape_.tags_per_chunk; ++i) {
      tag(chunk, i).store(0, std::memory_order_release);
    }
  }
}

bool Arena::restore(ChunkRange chunks, const std::stop_token& stop) {
  KVFERRY_CHECK(can_resize(), "an arena that cannot be resized is to restore pieces");
  std::vector<PieceId> restored;
  // Other processes may have restored the same pieces, so their pages stay the same.
  const auto roll_back = [&] {
    for (const PieceId piece : restored) {
      unregister_piece(piece);
      source_->release(pages_, chunks_of(piece));
    }
  };
  for (PieceId piece = piece_of(chunks.begin); piece < end_of_pieces(chunks);
       piece = piece.next()) {
    if (registrations_[piece.value()]) continue;
    try {
      if (!restore_piece(piece, stop)) {
        roll_back();
        return false;
      }
    } catch (const std::exception&) {
      roll_back();
      throw;
    }
    restored.push_back(piece);
  }
  return true;
}

bool Arena::restore_piece(PieceId piece, const std::stop_token& stop) {
  const ChunkRange chunks = chunks_of(piece);
  try {
    if (!source_->make_resident_again(pages_, chunks, stop) ||
        !pages_.populate_tags(chunks, stop)) {
      source_->release(pages_, chunks);
      return false;
    }
    KVFERRY_PAUSE_POINT("arena.before_registering_again");
    register_chunks(chunks);
  } catch (const std::exception&) {
    source_->release(pages_, chunks);
    throw;
  }
  num_usable_.fetch_add(chunks.end.value() - chunks.begin.value(), std::memory_order_relaxed);
  return true;
}

}  // namespace kvferry::cpu_tier
