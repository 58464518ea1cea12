// SPDX-License-Identifier: Apache-2.0
#include "kvferry/transfer/transfer_engine.hpp"

#include "kvferry/base/error.hpp"
#include "kvferry/base/graveyard.hpp"
#include "kvferry/base/test_hooks.hpp"

#include "block_sums.hpp"
#include "copy_pump.hpp"
#include "gather_stage.hpp"
#include "path_chooser.hpp"
#include "piece_size.hpp"
#include "transfer_table.hpp"

#include <algorithm>
#include <cstdio>
#include <utility>

namespace kvferry::transfer {
namespace {

/// The transfer thread ends within microseconds, unless it is in a call of a hung driver.
constexpr std::chrono::seconds kStopBound{1};

/// Prepares the device, so that the first gather of a serving engine neither uploads nor waits.
/// Without kernels nothing can be packed, which is an error only if there is a ring.
void prepare(gpu::Device& device, std::span<const BlockClass> classes,
             const TransferOptions& options) {
  if (options.staging_bytes == 0 && !device.traits().has_pack_kernels) return;
  for (const BlockClass& of : classes) device.prepare(of.geometry);
}

/// The classes, checked that their blocks fit their slots, and ready to be packed.
std::vector<BlockClass> prepared(gpu::Device& device, std::vector<BlockClass> classes,
                                 const TransferOptions& options) {
  for (std::size_t i = 0; i < classes.size(); ++i) {
    const auto& [geometry, slots] = classes[i];
    if (geometry.packed_bytes > slots.slot_bytes()) {
      throw ConfigError("a block of class " + std::to_string(i) + " has " +
                        std::to_string(geometry.packed_bytes) + " bytes, but its slots have " +
                        std::to_string(slots.slot_bytes()) +
                        ": make slots as large as the largest block");
    }
  }
  prepare(device, classes, options);
  return classes;
}

/// The classes with blocks at other addresses. Throws ConfigError for blocks of other sizes.
std::vector<BlockClass> moved(std::vector<BlockClass> classes,
                              std::vector<gpu::BlockGeometry> geometries) {
  if (geometries.size() != classes.size()) {
    throw ConfigError("the restored KV cache has " + std::to_string(geometries.size()) +
                      " sizes of blocks; before the sleep it had " +
                      std::to_string(classes.size()));
  }
  for (std::size_t i = 0; i < classes.size(); ++i) {
    gpu::BlockGeometry& now = geometries[i];
    const gpu::BlockGeometry& before = classes[i].geometry;
    if (now.packed_bytes != before.packed_bytes || now.num_blocks != before.num_blocks) {
      throw ConfigError("the restored KV cache has " + std::to_string(now.num_blocks) +
                        " blocks of " + std::to_string(now.packed_bytes) + " bytes in class " +
                        std::to_string(i) + "; before the sleep it had " +
                        std::to_string(before.num_blocks) + " of " +
                        std::to_string(before.packed_bytes));
    }
    classes[i].geometry = std::move(now);
  }
  return classes;
}

std::vector<BlockClass> on_slots_of(const cpu_tier::Arena& arena,
                                    std::vector<gpu::BlockGeometry> geometries) {
  std::vector<BlockClass> classes;
  classes.reserve(geometries.size());
  for (gpu::BlockGeometry& geometry : geometries) {
    classes.push_back({std::move(geometry), cpu_tier::ArenaSlots(arena, 1, arena.chunk_bytes())});
  }
  return classes;
}

std::unique_ptr<StagingRing> make_load_staging(gpu::Device& device,
                                               const TransferOptions& options) {
  const gpu::DeviceTraits traits = device.traits();
  const bool wanted = options.copy_path ? *options.copy_path == gpu::CopyPath::kStaged
                                        : traits.family != gpu::DeviceFamily::kHost;
  if (!wanted || options.load_staging_bytes == 0 || !traits.has_pack_kernels) return nullptr;
  return std::make_unique<StagingRing>(device, options.load_staging_bytes);
}

std::unique_ptr<BlockSums> make_sums(gpu::Device& device, std::span<const BlockClass> classes,
                                     const TransferOptions& options) {
  if (options.verify == Verification::kOff || !device.traits().has_pack_kernels) return nullptr;
  std::uint64_t smallest = classes.front().geometry.packed_bytes;
  for (const BlockClass& of : classes) {
    if (!of.slots.has_tags()) return nullptr;
    smallest = std::min(smallest, of.geometry.packed_bytes);
  }
  return std::make_unique<BlockSums>(device, options.staging_bytes, smallest, gpu::kMaxBatchRuns);
}

}  // namespace

class TransferEngine::Impl {
 public:
  Impl(gpu::Device& device, std::vector<BlockClass> classes, const TransferOptions& options)
      : device_(device),
        options_(options),
        classes_(prepared(device, std::move(classes), options)),
        piece_bytes_(choose_piece_bytes(device, options)),
        end_timeout_(options.end_timeout),
        ring_(device, options.staging_bytes),
        sums_(make_sums(device, classes_, options)),
        gather_stage_(device, ring_, sums_.get(), piece_bytes_),
        chooser_(device.traits(), options.copy_path),
        table_(options),
        load_staging_(make_load_staging(device, options)),
        pump_(device, ring_, load_staging_.get(), sums_.get(), classes_, options, chooser_,
              table_) {}
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  /// Everything has ended. What the ring still holds is in quarantine: a launch may still write it,
  /// and the sums.
  ~Impl() {
    if (sums_ && ring_.used_bytes() > 0) sums_->give_memory_back(false);
  }

  std::uint32_t gather(gpu::Stream& compute, TransferId transfer, SlabClassId slab_class,
                       std::span<const BlockSlot> blocks) {
    const BlockClass& of = class_of(slab_class, blocks);
    note_loss();
    if (is_asleep_ || blocks.empty() || !table_.begin_gather(transfer)) return 0;
    GatherResult result = gather_stage_.gather(compute, transfer, slab_class, of, blocks);
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

  void load(TransferId transfer, std::span<const LoadPart> parts, const Fence& fence) {
    std::vector<Piece> pieces;
    for (const LoadPart& part : parts) {
      const BlockClass& of = class_of(part.slab_class, part.blocks);
      add_pieces(transfer, part.slab_class, of, part.blocks, fence, pieces);
    }
    note_loss();
    if (is_asleep_ && !pieces.empty()) return table_.add_load(transfer, {}, "the engine sleeps");
    if (pieces.empty() || fence) return table_.add_load(transfer, std::move(pieces), {});
    table_.add_load(transfer, {}, "fence: " + fence_failure_);
  }

  TransferStats stats() const {
    TransferStats stats = table_.stats();
    stats.ring_used_bytes = ring_.used_bytes();
    stats.ring_size_bytes = ring_.size_bytes();
    stats.load_staging_used_bytes = load_staging_used();
    if (load_staging_) stats.load_staging_size_bytes = load_staging_->size_bytes();
    stats.scrubbed_slots = pump_.scrubber().num_read();
    return stats;
  }

  std::optional<Quarantine> quarantine() {
    std::optional<Quarantine> quarantine = told_of_loss().quarantine();
    if (quarantine) quarantine->staging_bytes = ring_.used_bytes() + load_staging_used();
    return quarantine;
  }

  /// The table, after it was told of a loss: while nothing is in flight, the transfer thread sleeps
  /// and does not see one.
  TransferTable& told_of_loss() {
    note_loss();
    return table_;
  }

  bool sleep(std::chrono::nanoseconds bound) {
    if (is_asleep_) return true;
    if (!told_of_loss().wait_idle(bound)) return false;
    is_asleep_ = true;
    give_memory_back();
    return true;
  }

  [[nodiscard]] bool is_asleep() const { return is_asleep_; }

  void wake(std::vector<gpu::BlockGeometry> geometries) {
    if (!is_asleep_) return;
    classes_ = moved(classes_, std::move(geometries));
    try {
      prepare(device_, classes_, options_);
      ring_.take_memory();
      if (load_staging_) load_staging_->take_memory();
      if (sums_) sums_->take_memory();
    } catch (...) {
      give_memory_back();
      throw;
    }
    is_asleep_ = false;
  }

  bool end() {
    TransferTable& table = told_of_loss();
    return table.close(end_timeout_ - table.closed_for());
  }

  /// Gives up on copies that do not end. As far as a moment allows, all work of ours stops, so that
  /// only the device still runs.
  void abandon() {
    if (!quarantine()) {
      const auto waited = std::chrono::duration_cast<std::chrono::seconds>(end_timeout_);
      std::fprintf(stderr,
                   "kvferry: copies of %s have not ended within %lld s of the end of their engine; "
                   "their memory is kept until the process ends. A hung device or link is the "
                   "usual cause: restart the process\n",
                   device_.description().c_str(), static_cast<long long>(waited.count()));
    }
    pump_.stop_within(kStopBound);
  }

  std::vector<DamagedSlot> take_scrub_findings() { return pump_.scrubber().take_findings(); }

  std::uint64_t piece_bytes() const { return piece_bytes_; }
  TransferTable& table() { return table_; }
  std::string copy_paths_text() const {
    return chooser_.text(pump_.store_paths(), pump_.load_paths());
  }

 private:
  std::uint64_t load_staging_used() const {
    return load_staging_ ? load_staging_->used_bytes() : 0;
  }
  /// The most bytes of a load's piece: as much as can be staged, or one block.
  std::uint64_t load_piece_bytes() const {
    return load_staging_ ? std::min(piece_bytes_, load_staging_->size_bytes() / 2) : piece_bytes_;
  }

  void give_memory_back() {
    const bool is_quiet = ring_.give_memory_back();
    if (sums_) sums_->give_memory_back(is_quiet);
    if (load_staging_) load_staging_->give_memory_back();
    if (!is_quiet) return;  // That launch also reads the geometry.
    for (const BlockClass& of : classes_) device_.forget(of.geometry);
  }

  void note_loss() {
    if (const auto loss = device_.lost()) table_.lose(*loss);
  }

  const BlockClass& class_of(SlabClassId slab_class, std::span<const BlockSlot> blocks) const {
    if (slab_class.value() >= classes_.size()) {
      throw ProtocolError("a transfer names class " + std::to_string(slab_class.value()) + " of " +
                          std::to_string(classes_.size()));
    }
    const BlockClass& of = classes_[slab_class.value()];
    for (const auto& [block, slot, identity] : blocks) {
      if (block.value() >= of.geometry.num_blocks || !of.slots.is_ready(slot)) {
        throw ProtocolError("a transfer of class " + std::to_string(slab_class.value()) +
                            " names block " + std::to_string(block.value()) + " of " +
                            std::to_string(of.geometry.num_blocks) + " and slot " +
                            std::to_string(slot.value()) + "; " +
                            std::to_string(of.slots.num_ready()) + " slots are ready");
      }
    }
    return of;
  }

  void add_pieces(TransferId transfer, SlabClassId slab_class, const BlockClass& of,
                  std::span<const BlockSlot> blocks, const Fence& fence,
                  std::vector<Piece>& pieces) const {
    const std::uint64_t per_piece = std::clamp<std::uint64_t>(
        std::min<std::uint64_t>(load_piece_bytes() / of.geometry.packed_bytes,
                                gpu::kMaxBatchRuns / of.geometry.fragments.size()),
        1, gpu::kMaxBatchRuns);
    const std::vector<BlockSlot> sorted = sorted_by_slot(blocks);
    for (std::size_t first = 0; first < sorted.size(); first += per_piece) {
      const std::size_t end = std::min<std::size_t>(first + per_piece, sorted.size());
      Piece piece;
      piece.transfer = transfer;
      piece.kind = TransferKind::kLoad;
      piece.slab_class = slab_class;
      piece.of = &of;
      piece.blocks.assign(sorted.begin() + first, sorted.begin() + end);
      piece.after = fence;
      piece.bytes = (end - first) * of.geometry.packed_bytes;
      pieces.push_back(std::move(piece));
    }
  }

  gpu::Device& device_;
  const TransferOptions options_;
  /// Pieces point into this, so it changes only while there are none.
  std::vector<BlockClass> classes_;
  const std::uint64_t piece_bytes_;
  const std::chrono::nanoseconds end_timeout_;
  /// Why the last fence() returned null. Only the engine's thread uses it.
  std::string fence_failure_ = "there is none";
  bool is_asleep_ = false;  ///< Only the engine's thread uses it.
  StagingRing ring_;
  /// Null if blocks are not checked.
  std::unique_ptr<BlockSums> sums_;
  GatherStage gather_stage_;
  PathChooser chooser_;
  TransferTable table_;
  /// Null if no load is staged.
  std::unique_ptr<StagingRing> load_staging_;
  CopyPump pump_;
};

TransferEngine::TransferEngine(gpu::Device& device, std::vector<BlockClass> classes,
                               const TransferOptions& options)
    : impl_(std::make_unique<Impl>(device, std::move(classes), options)) {}

TransferEngine::TransferEngine(gpu::Device& device, std::vector<gpu::BlockGeometry> geometries,
                               const cpu_tier::Arena& arena, const TransferOptions& options)
    : TransferEngine(device, on_slots_of(arena, std::move(geometries)), options) {}

TransferEngine::~TransferEngine() {
  if (end()) return;
  // The device may touch what it owns at any later time: streams, events, staging memory.
  impl_->abandon();
  bury(std::move(impl_));
}

std::uint32_t TransferEngine::gather(gpu::Stream& compute, TransferId transfer,
                                     SlabClassId slab_class, std::span<const BlockSlot> blocks) {
  return impl_->gather(compute, transfer, slab_class, blocks);
}

bool TransferEngine::takes_blocks(TransferId transfer) const {
  return impl_->table().takes_blocks(transfer);
}

bool TransferEngine::seal(TransferId transfer) { return impl_->table().seal(transfer); }

Fence TransferEngine::fence(gpu::Stream& compute) { return impl_->fence(compute); }

void TransferEngine::load(TransferId transfer, std::span<const LoadPart> parts,
                          const Fence& fence) {
  impl_->load(transfer, parts, fence);
}

void TransferEngine::cancel(TransferId transfer) { impl_->table().cancel(transfer); }

void TransferEngine::cancel_unbegun(TransferId transfer) {
  impl_->table().cancel_unbegun(transfer);
}

std::vector<DamagedSlot> TransferEngine::take_scrub_findings() {
  return impl_->take_scrub_findings();
}

std::vector<Completion> TransferEngine::poll() { return impl_->table().poll(); }

TransferStats TransferEngine::stats() const { return impl_->stats(); }

std::string TransferEngine::copy_paths_text() const { return impl_->copy_paths_text(); }

std::uint64_t TransferEngine::piece_bytes() const { return impl_->piece_bytes(); }

std::optional<Quarantine> TransferEngine::quarantine() const { return impl_->quarantine(); }

std::optional<OverdueTransfer> TransferEngine::overdue(std::chrono::nanoseconds bound) const {
  return impl_->table().overdue(bound);
}

bool TransferEngine::wait_idle(std::chrono::nanoseconds bound) const {
  return impl_->told_of_loss().wait_idle(bound);
}

bool TransferEngine::sleep(std::chrono::nanoseconds bound) { return impl_->sleep(bound); }

bool TransferEngine::is_asleep() const { return impl_->is_asleep(); }

void TransferEngine::wake(std::vector<gpu::BlockGeometry> geometries) {
  impl_->wake(std::move(geometries));
}

bool TransferEngine::close(std::chrono::nanoseconds bound) {
  return impl_->told_of_loss().close(bound);
}

bool TransferEngine::end() { return impl_->end(); }

}  // namespace kvferry::transfer
