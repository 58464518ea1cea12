// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/gpu/device.hpp"
#include "kvferry/transfer/staging_ring.hpp"

#include "block_sums.hpp"
#include "check_sampler.hpp"
#include "coalesce_runs.hpp"
#include "copy_shape.hpp"
#include "path_chooser.hpp"
#include "piece.hpp"

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace kvferry::transfer {

/// A piece that no device touches any more.
struct EndedPiece {
  Piece piece;
  std::string failure;          ///< Empty: every byte arrived, and of a load is what was stored.
  std::vector<SlotId> damaged;  ///< Of a load: whose bytes are not those that were stored.
  std::chrono::nanoseconds device_time{0};
};

/// One direction of the link: a stream and what was submitted to it. Used by the transfer thread
/// only.
///
/// A load can go through staging memory. Its copy into there is ordered behind nothing, because the
/// memory is ours; its scatter runs on another stream, after the copy and the fence. Staging
/// memory is given back when the scatter ended. Scatters take turns on kNumSecondStreams streams:
/// while one waits for a free multiprocessor beside the engine's kernels, or for a fence, the next
/// may run.
///
/// A load whose blocks are checked continues in the same way: after its copy, another stream sums
/// what arrived. A scatter sums the bytes that it moves. The sums are compared when the piece has
/// ended. The sums of a store were made by its gather, and become the tags of its slots then.
///
/// So pieces of loads have no order among them, and need none: README.md says what orders two uses
/// of the same memory.
class CopyLane {
 public:
  /// A scatter beside prefill waited 1.6 ms (LMCache#5067), which is four copies of 16 MiB over
  /// PCIe 5 x16. More streams would need more staging memory to have something to do.
  static constexpr std::size_t kNumSecondStreams = 2;

  /// How blocks are checked.
  struct Checks {
    BlockSums* sums;  ///< Null if blocks are not checked; then stores leave no tags.
    CheckSampler& sampler;
    KnownBlocks& known;
  };

  /// `staging`: null if no piece can be staged.
  CopyLane(gpu::Device& device, PathChooser& chooser, gpu::CopyDirection direction,
           StagingRing* staging, const Checks& checks);
  ~CopyLane();
  CopyLane(const CopyLane&) = delete;
  CopyLane& operator=(const CopyLane&) = delete;

  /// Submits the piece's work behind `piece.after`, or lets it wait here for staging memory. Never
  /// throws DeviceError: a piece that the device refuses comes back from reap() like every other.
  void submit(Piece piece);
  /// The pieces that ended; then submits those for which staging memory became free. Stores come in
  /// order of submission while the device is well, and so do loads that end on the same stream: a
  /// load that is staged is overtaken by those of the other scatter stream and by those that are
  /// not staged. Waits for nothing.
  [[nodiscard]] std::vector<EndedPiece> reap();
  [[nodiscard]] bool busy() const { return !in_flight_.empty() || !waiting_.empty(); }
  /// Whether the oldest piece was found waiting for what it is ordered behind on the compute
  /// stream, by the last reap().
  [[nodiscard]] bool is_held() const { return held_; }
  /// Calls `visit` for every piece that was submitted and has not ended.
  template <class Visit>
  void for_each(Visit visit) const {
    for (const InFlight& work : in_flight_) {
      // A load that was refused touches nothing; a refused store still has its gather.
      if (work.submitted || work.piece.kind == TransferKind::kStore) visit(work.piece);
    }
  }
  /// What pieces can go here, at best.
  [[nodiscard]] const CopyPaths& paths() const { return paths_; }

 private:
  struct InFlight {
    Piece piece;
    std::vector<gpu::CopyRun> runs;  ///< As it goes without packing.
    CopyShape shape;
    gpu::CopyPath path = gpu::CopyPath::kPerRun;
    /// Of a staged load, an entry per block in order; taken one after the other.
    std::vector<RingRegion> staging;
    std::uint32_t num_staged = 0;
    bool is_checked = false;  ///< Of a load.
    /// Of a load that is checked: where its blocks are summed.
    std::optional<SumRange> sums;
    /// Has its last operation and `end`: a second stream if it is staged, or copied and checked;
    /// else the copies'.
    gpu::Stream* last_stream = nullptr;
    std::unique_ptr<gpu::Event> begin;
    std::unique_ptr<gpu::Event> copied;        ///< Of a load with a second stream: after its copy,
    std::unique_ptr<gpu::Event> second_begin;  ///< and before its scatter or check.
    std::unique_ptr<gpu::Event> end;
    std::string failure;     ///< Of the submission.
    bool submitted = false;  ///< At least one operation on its memory is in a stream.
    bool recorded = false;   ///< `end` marks the end of all of them.
  };

  /// Whether the piece has the staging memory and the sums that it needs, after taking what is
  /// free.
  [[nodiscard]] bool take_memory(InFlight& work);
  [[nodiscard]] bool take_staging(InFlight& work);
  void give_memory_back(const InFlight& work);
  /// Whether something follows the piece's copy, on another stream.
  [[nodiscard]] static bool has_second_stream(const InFlight& work) {
    return work.path == gpu::CopyPath::kStaged ||
           (work.is_checked && work.path != gpu::CopyPath::kKernel);
  }
  void start_waiting();
  void enqueue(InFlight& work);
  void enqueue_copy(InFlight& work, std::span<const gpu::CopyRun> runs);
  void enqueue_scatter(InFlight& work, gpu::Stream& stream,
                       std::span<const PackedStretch> stretches);
  void enqueue_on_second(InFlight& work);
  /// Sums what arrived in the blocks of a load.
  void enqueue_check(const InFlight& work, gpu::Stream& stream);
  [[nodiscard]] gpu::CopyPath choose(const InFlight& work) const;
  [[nodiscard]] bool ended(const InFlight& work);
  /// Why the bytes of ended and recorded work cannot be trusted; empty if they can.
  [[nodiscard]] static std::string failure_of(const InFlight& work, const Piece& piece);
  /// The device's time, learned from.
  [[nodiscard]] std::chrono::nanoseconds time_of(const InFlight& work);
  /// The device's time, the check's included.
  [[nodiscard]] static std::chrono::nanoseconds checked_time(const InFlight& work,
                                                             std::chrono::nanoseconds time);
  /// Writes the tags of a store that has ended well.
  void write_tags(const Piece& store);
  /// Compares the tags of a load that has ended well.
  void check_tags(const SumRange& sums, EndedPiece& load);

  gpu::Device& device_;
  PathChooser& chooser_;
  const gpu::CopyDirection direction_;
  StagingRing* const staging_;
  BlockSums* const sums_;
  CheckSampler& sampler_;
  KnownBlocks& known_;
  const CopyPaths paths_;
  std::unique_ptr<gpu::Stream> stream_;
  /// For what follows a load's copy. Empty if nothing does.
  const std::vector<std::unique_ptr<gpu::Stream>> second_streams_;
  std::uint64_t num_seconds_ = 0;  ///< Pieces that were given one.
  /// Wait for staging memory or for sums, or after one that does; not submitted.
  std::deque<InFlight> waiting_;
  std::deque<InFlight> in_flight_;
  bool held_ = false;
};

}  // namespace kvferry::transfer
