// SPDX-License-Identifier: Apache-2.0
#include "kvferry/transfer/transfer_engine.hpp"

#include "kvferry/base/error.hpp"
#include "kvferry/base/test_hooks.hpp"

#include "copy_pump.hpp"
#include "gather_stage.hpp"
#include "transfer_table.hpp"

#include <algorithm>
#include <utility>

namespace kvferry::transfer {
namespace {

std::vector<gpu::BlockGeometry> checked(std::vector<gpu::BlockGeometry> geometries,
                                        std::uint64_t slot_bytes) {
  for (std::size_t g = 0; g < geometries.size(); ++g) {
    if (geometries[g].packed_bytes > slot_bytes) {
      throw ConfigError("a block of group " + std::to_string(g) + " takes " +
                        std::to_string(geometries[g].packed_bytes) + " bytes, a slot has " +
                        std::to_string(slot_bytes) + ": make slots as large as the largest block");
    }
  }
  return geometries;
}

}  // namespace

class TransferEngine::Impl {
 public:
  Impl(gpu::Device& device, std::vector<gpu::BlockGeometry> geometries,
       const cpu_tier::Arena& arena, const TransferOptions& options)
      : device_(device),
        arena_(arena),
        geometries_(checked(std::move(geometries), arena.slot_bytes())),
        piece_bytes_(options.piece_bytes),
        ring_(device, options.staging_bytes),
        gather_stage_(device, ring_, options.piece_bytes),
        table_(options.max_in_flight_bytes),
        pump_(device, arena, ring_, table_) {}

  std::uint32_t gather(gpu::Stream& compute, TransferId transfer, GroupId group,
                       std::span<const BlockSlot> blocks) {
    const gpu::BlockGeometry& geometry = geometry_of(group, blocks);
    if (blocks.empty() || !table_.begin_gather(transfer)) return 0;
    GatherResult result = gather_stage_.gather(compute, transfer, geometry, blocks);
    const std::uint32_t num_gathered = result.num_gathered;
    table_.end_gather(transfer, std::move(result));
    return num_gathered;
  }

  Fence fence(gpu::Stream& compute) {
    try {
      if (KVFERRY_FAULT_POINT("transfer.fence")) throw DeviceError("fault point transfer.fence");
      Fence fence = device_.create_event();
      compute.record(*fence);
      return fence;
    } catch (const Error& error) {
      fence_failure_ = error.what();
      return nullptr;
    }
  }

  void load(TransferId transfer, GroupId group, std::span<const BlockSlot> blocks, Fence fence) {
    const gpu::BlockGeometry& geometry = geometry_of(group, blocks);
    if (blocks.empty()) return table_.add_load(transfer, {}, {});
    if (!fence) return table_.add_load(transfer, {}, "fence: " + fence_failure_);
    const std::uint64_t per_piece = std::clamp<std::uint64_t>(
        std::min<std::uint64_t>(piece_bytes_ / geometry.packed_bytes,
                                gpu::kMaxBatchRuns / geometry.fragments.size()),
        1, gpu::kMaxBatchRuns);
    const std::vector<BlockSlot> sorted = sorted_by_slot(blocks);
    std::vector<Piece> pieces;
    for (std::size_t first = 0; first < sorted.size(); first += per_piece) {
      const std::size_t end = std::min<std::size_t>(first + per_piece, sorted.size());
      Piece piece;
      piece.transfer = transfer;
      piece.kind = TransferKind::kLoad;
      piece.geometry = &geometry;
      piece.blocks.assign(sorted.begin() + first, sorted.begin() + end);
      piece.after = fence;
      piece.bytes = (end - first) * geometry.packed_bytes;
      pieces.push_back(std::move(piece));
    }
    table_.add_load(transfer, std::move(pieces), {});
  }

  TransferStats stats() const {
    TransferStats stats = table_.stats();
    stats.ring_used_bytes = ring_.used_bytes();
    stats.ring_size_bytes = ring_.size_bytes();
    return stats;
  }

  TransferTable& table() { return table_; }

 private:
  const gpu::BlockGeometry& geometry_of(GroupId group, std::span<const BlockSlot> blocks) const {
    if (group.value() >= geometries_.size()) {
      throw ProtocolError("a transfer names group " + std::to_string(group.value()) + " of " +
                          std::to_string(geometries_.size()));
    }
    const gpu::BlockGeometry& geometry = geometries_[group.value()];
    for (const auto& [block, slot] : blocks) {
      if (block.value() >= geometry.num_blocks || slot.value() >= arena_.num_slots()) {
        throw ProtocolError("a transfer of group " + std::to_string(group.value()) +
                            " names block " + std::to_string(block.value()) + " of " +
                            std::to_string(geometry.num_blocks) + " and slot " +
                            std::to_string(slot.value()) + " of " +
                            std::to_string(arena_.num_slots()));
      }
    }
    return geometry;
  }

  gpu::Device& device_;
  const cpu_tier::Arena& arena_;
  const std::vector<gpu::BlockGeometry> geometries_;
  const std::uint64_t piece_bytes_;
  /// Why the last fence() gave none. The engine thread's.
  std::string fence_failure_ = "there is none";
  StagingRing ring_;
  GatherStage gather_stage_;
  TransferTable table_;
  CopyPump pump_;
};

TransferEngine::TransferEngine(gpu::Device& device, std::vector<gpu::BlockGeometry> geometries,
                               const cpu_tier::Arena& arena, const TransferOptions& options)
    : impl_(std::make_unique<Impl>(device, std::move(geometries), arena, options)) {}

TransferEngine::~TransferEngine() {
  while (!close(std::chrono::hours(1))) {
  }
}

std::uint32_t TransferEngine::gather(gpu::Stream& compute, TransferId transfer, GroupId group,
                                     std::span<const BlockSlot> blocks) {
  return impl_->gather(compute, transfer, group, blocks);
}

bool TransferEngine::seal(TransferId transfer) { return impl_->table().seal(transfer); }

Fence TransferEngine::fence(gpu::Stream& compute) { return impl_->fence(compute); }

void TransferEngine::load(TransferId transfer, GroupId group, std::span<const BlockSlot> blocks,
                          Fence fence) {
  impl_->load(transfer, group, blocks, std::move(fence));
}

void TransferEngine::cancel(TransferId transfer) { impl_->table().cancel(transfer); }

std::vector<Completion> TransferEngine::poll() { return impl_->table().poll(); }

TransferStats TransferEngine::stats() const { return impl_->stats(); }

std::optional<OverdueTransfer> TransferEngine::overdue(std::chrono::nanoseconds bound) const {
  return impl_->table().overdue(bound);
}

bool TransferEngine::wait_idle(std::chrono::nanoseconds bound) const {
  return impl_->table().wait_idle(bound);
}

bool TransferEngine::close(std::chrono::nanoseconds bound) { return impl_->table().close(bound); }

}  // namespace kvferry::transfer
