// SPDX-License-Identifier: Apache-2.0
#include "gather_stage.hpp"

#include "kvferry/base/check.hpp"
#include "kvferry/base/test_hooks.hpp"

#include <algorithm>
#include <utility>

namespace kvferry::transfer {
namespace {

bool slot_less(const BlockSlot& a, const BlockSlot& b) { return a.slot < b.slot; }

std::uintptr_t region_end(const RingRegion& region) {
  return region.address + region.num_entries * region.entry_bytes;
}

}  // namespace

std::vector<BlockSlot> sorted_by_slot(std::span<const BlockSlot> blocks) {
  std::vector<BlockSlot> sorted(blocks.begin(), blocks.end());
  if (!std::is_sorted(sorted.begin(), sorted.end(), slot_less)) {
    std::sort(sorted.begin(), sorted.end(), slot_less);
  }
  return sorted;
}

GatherResult GatherStage::gather(gpu::Stream& compute, TransferId transfer, SlabClassId slab_class,
                                 const BlockClass& of, std::span<const BlockSlot> blocks) {
  GatherResult result;
  result.pieces = take_ring(transfer, slab_class, of, blocks);
  std::size_t done = 0;
  while (done < result.pieces.size() && result.failure.empty()) {
    std::size_t end = done + 1;
    while (end < result.pieces.size() &&
           result.pieces[end].region.address == region_end(result.pieces[end - 1].region)) {
      ++end;
    }
    const std::span<Piece> launched(result.pieces.data() + done, end - done);
    for (const Piece& piece : launched) result.num_gathered += piece.region.num_entries;
    result.failure = launch(compute, launched);
    if (result.failure.empty()) {
      done = end;
      continue;
    }
    for (std::size_t i = end; i < result.pieces.size(); ++i) {
      ring_.release(result.pieces[i].region.ticket);
    }
  }
  result.pieces.resize(done);
  return result;
}

std::vector<Piece> GatherStage::take_ring(TransferId transfer, SlabClassId slab_class,
                                          const BlockClass& of, std::span<const BlockSlot> blocks) {
  const std::uint64_t per_piece =
      std::clamp<std::uint64_t>(piece_bytes_ / of.geometry.packed_bytes, 1, gpu::kMaxBatchRuns);
  std::vector<Piece> pieces;
  std::size_t taken = 0;
  while (taken < blocks.size()) {
    const auto wanted =
        static_cast<std::uint32_t>(std::min<std::uint64_t>(per_piece, blocks.size() - taken));
    const RingRegion region = ring_.allocate(of.geometry.packed_bytes, wanted);
    if (region.num_entries == 0) break;
    Piece piece;
    piece.transfer = transfer;
    piece.kind = TransferKind::kStore;
    piece.slab_class = slab_class;
    piece.of = &of;
    piece.region = region;
    piece.bytes = region.num_entries * region.entry_bytes;
    pieces.push_back(std::move(piece));
    taken += region.num_entries;
  }
  // A block may take any entry of the ring.
  const std::vector<BlockSlot> sorted = sorted_by_slot(blocks.first(taken));
  const auto same =
      std::adjacent_find(sorted.begin(), sorted.end(),
                         [](const BlockSlot& a, const BlockSlot& b) { return a.slot == b.slot; });
  KVFERRY_CHECK(same == sorted.end(), "store " + std::to_string(transfer.value()) +
                                          " has two blocks for slot " +
                                          std::to_string(same->slot.value()));
  auto next = sorted.begin();
  for (Piece& piece : pieces) {
    piece.blocks.assign(next, next + piece.region.num_entries);
    next += piece.region.num_entries;
  }
  return pieces;
}

// The words of all pieces are contiguous, as one launch needs them. An operation that throws has
// not begun, but those before it have.
void GatherStage::gather_into(gpu::Stream& compute, std::span<Piece> pieces,
                              std::span<const BlockId> ids, bool& launched) {
  const gpu::BlockGeometry& geometry = pieces.front().of->geometry;
  const RingRegion& first = pieces.front().region;
  if (sums_ == nullptr) {
    compute.gather(geometry, ids, first.address);
    launched = true;
    return;
  }
  const SumRange all = sums_->before(first.offset + ids.size() * first.entry_bytes,
                                     static_cast<std::uint32_t>(ids.size()));
  std::uint64_t next = all.first;
  for (Piece& piece : pieces) {
    piece.sums = {next, piece.region.num_entries};
    next += piece.region.num_entries;
  }
  sums_->clear(compute, all);
  launched = true;
  compute.gather(geometry, ids, first.address, sums_->device_address(all));
  sums_->send(compute, all);
}

std::string GatherStage::launch(gpu::Stream& compute, std::span<Piece> pieces) {
  std::vector<BlockId> ids;
  for (const Piece& piece : pieces) {
    for (const BlockSlot& entry : piece.blocks) ids.push_back(entry.block);
  }
  bool launched = false;
  try {
    std::shared_ptr<gpu::Event> gathered = device_.create_event();
    if (KVFERRY_FAULT_POINT("transfer.gather")) throw DeviceError("fault point transfer.gather");
    gather_into(compute, pieces, ids, launched);
    if (KVFERRY_FAULT_POINT("transfer.record_gather")) {
      throw DeviceError("fault point transfer.record_gather");
    }
    compute.record(*gathered);
    for (Piece& piece : pieces) piece.after = gathered;
    return {};
  } catch (const Error& error) {
    // No event marks this launch, so it may write the ring at any later time, and this thread may
    // not wait for it.
    for (const Piece& piece : pieces) {
      launched ? ring_.quarantine(piece.region.ticket) : ring_.release(piece.region.ticket);
    }
    return std::string("gather: ") + error.what();
  }
}

}  // namespace kvferry::transfer
