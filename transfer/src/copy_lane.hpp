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
  std::string failure;          ///< Empty if every byte arrived, and a checked load matched.
  std::vector<SlotId> damaged;  ///< Slots of a load with other bytes than were stored.
  std::chrono::nanoseconds device_time{0};
};

/// One direction of the link: a stream and the pieces that were submitted to it. Used by the
/// transfer thread only.
///
/// A load can go through staging memory. Its copy into that memory waits for nothing, because the
/// memory is ours. Its scatter runs on another stream, after the copy and the fence, and the
/// staging memory is given back when the scatter ended. Scatters take turns on kNumSecondStreams
/// streams: while one waits for a free multiprocessor next to the engine's kernels, or for a fence,
/// the next one may run.
///
/// A load whose blocks are checked continues in the same way: after its copy, another stream sums
/// what arrived. A scatter sums the bytes that it moves. The sums are compared when the piece has
/// ended. A store's gather sums its blocks, and the sums become the tags of its slots when the
/// store's copy has ended.
///
/// So the pieces of loads have no order, and need none: README.md says what orders two uses of the
/// same memory.
class CopyLane {
 public:
  /// A scatter next to prefill waited 1.6 ms (LMCache#5067), which is the time of four copies of 16
  /// MiB over PCIe 5 x16. More streams would need more staging memory to be of use.
  static constexpr std::size_t kNumSecondStreams = 2;

  /// How blocks are checked.
  struct Checks {
    BlockSums* sums;  ///< Null if blocks are not checked; then stores leave no tags.
    CheckSampler& sampler;
    KnownBlocks& known;
  };

  /// `staging` is null if no piece can be staged.
  CopyLane(gpu::Device& device, PathChooser& chooser, gpu::CopyDirection direction,
           StagingRing* staging, const Checks& checks);
  ~CopyLane();
  CopyLane(const CopyLane&) = delete;
  CopyLane& operator=(const CopyLane&) = delete;

  /// Submits the piece's work after `piece.after`, or keeps the piece until there is staging
  /// memory. Never throws DeviceError: reap() returns a piece that the device refuses like every
  /// other piece.
  void submit(Piece piece);
  /// Returns the pieces that ended, and then submits the pieces that now get staging memory. While
  /// the device works, stores are returned in order of submission, and so are loads that end on the
  /// same stream. Loads on the other scatter stream and loads without staging can overtake a staged
  /// load. Never waits.
  [[nodiscard]] std::vector<EndedPiece> reap();
  [[nodiscard]] bool busy() const { return !in_flight_.empty() || !waiting_.empty(); }
  /// Whether the last reap() found that the oldest piece still waits for its event on the compute
  /// stream.
  [[nodiscard]] bool is_held() const { return held_; }
  /// Calls `visit` for every piece that was submitted and has not ended.
  template <class Visit>
  void for_each(Visit visit) const {
    for (const InFlight& work : in_flight_) {
      // A load that was refused touches nothing, but a refused store still has its gather.
      if (work.submitted || work.piece.kind == TransferKind::kStore) visit(work.piece);
    }
  }
  /// The paths that pieces of this direction can take at best.
  [[nodiscard]] const CopyPaths& paths() const { return paths_; }

 private:
  struct InFlight {
    Piece piece;
    std::vector<gpu::CopyRun> runs;  ///< The copies without packing.
    /// The scatters straight from the arena, as soon as somebody asked for them.
    std::vector<PackedStretch> stretches;
    CopyShape shape;
    gpu::CopyPath path = gpu::CopyPath::kPerRun;
    /// The entries of a staged load, one per block in order, which are taken one after the other.
    std::vector<RingRegion> staging;
    std::uint32_t num_staged = 0;
    bool is_checked = false;  ///< Only loads are checked.
    /// The words for the sums of a checked load's blocks.
    std::optional<SumRange> sums;
    /// The stream with the piece's last operation and `end`: a second stream if the piece is
    /// staged, or copied and checked; otherwise the copies' stream.
    gpu::Stream* last_stream = nullptr;
    std::unique_ptr<gpu::Event> begin;
    std::unique_ptr<gpu::Event> copied;        ///< With a second stream: after the copy,
    std::unique_ptr<gpu::Event> second_begin;  ///< and before its scatter or check.
    std::unique_ptr<gpu::Event> end;
    std::string failure;     ///< Why the submission failed.
    bool submitted = false;  ///< At least one operation on its memory is in a stream.
    bool recorded = false;   ///< `end` marks the end of all its operations.
  };

  /// Takes what is free of the staging memory and the sums that the piece needs. Returns whether it
  /// now has all of them.
  [[nodiscard]] bool take_memory(InFlight& work);
  [[nodiscard]] bool take_staging(InFlight& work);
  void give_memory_back(const InFlight& work);
  /// Whether another operation follows the piece's copy, on another stream.
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
  /// Sums the bytes that arrived in the blocks of a load.
  void enqueue_check(const InFlight& work, gpu::Stream& stream);
  [[nodiscard]] gpu::CopyPath choose(const InFlight& work) const;
  [[nodiscard]] bool ended(const InFlight& work);
  /// Why the bytes of ended and recorded work cannot be trusted; empty if they can.
  [[nodiscard]] static std::string failure_of(const InFlight& work, const Piece& piece);
  /// The device's time for the piece. The path chooser learns from it.
  [[nodiscard]] std::chrono::nanoseconds time_of(const InFlight& work);
  /// The device's time for the piece, including its check.
  [[nodiscard]] static std::chrono::nanoseconds checked_time(const InFlight& work,
                                                             std::chrono::nanoseconds time);
  /// Writes the tags of a store that has ended without a failure.
  void write_tags(const Piece& store);
  /// Compares the tags of a load that has ended without a failure.
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
  /// The streams for operations after a load's copy. Empty if there are no such operations.
  const std::vector<std::unique_ptr<gpu::Stream>> second_streams_;
  std::uint64_t num_seconds_ = 0;  ///< Pieces that were given a second stream.
  /// These pieces are not submitted: they wait for staging memory or for sums, or for an older
  /// piece that does.
  std::deque<InFlight> waiting_;
  std::deque<InFlight> in_flight_;
  bool held_ = false;
};

}  // namespace kvferry::transfer
