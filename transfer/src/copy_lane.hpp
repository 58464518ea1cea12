// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/gpu/device.hpp"
#include "kvferry/transfer/staging_ring.hpp"

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
  std::string failure;  ///< Empty: every byte arrived.
  std::chrono::nanoseconds device_time{0};
};

/// One direction of the link: a stream and what was submitted to it. Used by the transfer thread
/// only.
///
/// A load can go through staging memory. Its copy into there is ordered behind nothing, because the
/// memory is ours; its scatter runs on another stream, after the copy and the fence. Staging
/// memory is given back when the scatter ended. Scatters take turns on kNumScatterStreams streams:
/// while one waits for a free multiprocessor beside the engine's kernels, or for a fence, the next
/// may run.
///
/// So pieces of loads have no order among them, and need none: README.md says what orders two uses
/// of the same memory.
class CopyLane {
 public:
  /// A scatter beside prefill waited 1.6 ms (LMCache#5067), which is four copies of 16 MiB over
  /// PCIe 5 x16. More streams would need more staging memory to have something to do.
  static constexpr std::size_t kNumScatterStreams = 2;

  /// `staging`: null if no piece can be staged.
  CopyLane(gpu::Device& device, PathChooser& chooser, gpu::CopyDirection direction,
           StagingRing* staging);
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
    /// Has its last operation and `end`: its scatter stream if it is staged, else the copies'.
    gpu::Stream* last_stream = nullptr;
    std::unique_ptr<gpu::Event> begin;
    std::unique_ptr<gpu::Event> copied;         ///< Of a staged load: behind its copy,
    std::unique_ptr<gpu::Event> scatter_begin;  ///< and before its scatter.
    std::unique_ptr<gpu::Event> end;
    std::string failure;     ///< Of the submission.
    bool submitted = false;  ///< At least one operation on its memory is in a stream.
    bool recorded = false;   ///< `end` marks the end of all of them.
  };

  /// Whether the piece has the staging memory that it needs, after taking what is free.
  [[nodiscard]] bool take_staging(InFlight& work);
  void start_waiting();
  void enqueue(InFlight& work);
  void enqueue_copy(InFlight& work, std::span<const gpu::CopyRun> runs);
  void enqueue_scatter(InFlight& work, gpu::Stream& stream,
                       std::span<const PackedStretch> stretches);
  void enqueue_staged(InFlight& work);
  [[nodiscard]] gpu::CopyPath choose(const InFlight& work) const;
  [[nodiscard]] bool ended(const InFlight& work);
  /// Why the bytes of ended and recorded work cannot be trusted; empty if they can.
  [[nodiscard]] static std::string failure_of(const InFlight& work, const Piece& piece);
  /// The device's time, learned from.
  [[nodiscard]] std::chrono::nanoseconds time_of(const InFlight& work);

  gpu::Device& device_;
  PathChooser& chooser_;
  const gpu::CopyDirection direction_;
  StagingRing* const staging_;
  const CopyPaths paths_;
  std::unique_ptr<gpu::Stream> stream_;
  const std::vector<std::unique_ptr<gpu::Stream>> scatter_streams_;  ///< Empty without staging.
  std::uint64_t num_scattered_ = 0;  ///< Pieces that were given one.
  /// Chosen to be staged, or behind one that is; not submitted.
  std::deque<InFlight> waiting_;
  std::deque<InFlight> in_flight_;
  bool held_ = false;
};

}  // namespace kvferry::transfer
