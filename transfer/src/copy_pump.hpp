// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/gpu/device.hpp"
#include "kvferry/transfer/staging_ring.hpp"

#include "check_sampler.hpp"
#include "copy_lane.hpp"
#include "known_blocks.hpp"
#include "path_chooser.hpp"
#include "scrubber.hpp"
#include "transfer_table.hpp"

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

namespace kvferry::transfer {

/// The transfer thread. It takes pieces from the table, loads first, and submits each one to the
/// lane of its direction. A piece has ended when the events of its work say so, or when it was
/// dropped before it was submitted. Then the thread gives a store's region back to the ring, and
/// only after that reports the end to the table: a caller that sees a completion finds its part of
/// the ring free.
class CopyPump {
 public:
  CopyPump(gpu::Device& device, StagingRing& ring, StagingRing* load_staging, BlockSums* sums,
           const std::vector<BlockClass>& classes, const TransferOptions& options,
           PathChooser& chooser, TransferTable& table);
  /// Calls stop(). The table is closed and idle by then.
  ~CopyPump();
  CopyPump(const CopyPump&) = delete;
  CopyPump& operator=(const CopyPump&) = delete;

  [[nodiscard]] Scrubber& scrubber() { return scrubber_; }
  [[nodiscard]] const Scrubber& scrubber() const { return scrubber_; }
  /// The paths that loads and stores can take, at best.
  [[nodiscard]] const CopyPaths& load_paths() const { return loads_.paths(); }
  [[nodiscard]] const CopyPaths& store_paths() const { return stores_.paths(); }
  /// Ends the thread. Every piece that it still holds is in quarantine. Idempotent.
  void stop();
  /// The same for a thread that a hung driver may hold. If the bound is exceeded, the thread is
  /// left alone, and this object must not be destroyed any more.
  void stop_within(std::chrono::nanoseconds bound);

 private:
  void run();
  /// Reports a loss to the table, with the pieces that cannot be given back.
  void note_loss();
  /// Whether nothing of this engine is on the link or in doubt.
  [[nodiscard]] bool is_idle() const;
  /// How long the thread may sleep.
  [[nodiscard]] std::chrono::nanoseconds patience() const;
  /// Gives back the regions of the lane's pieces that have ended, and reports their ends to the
  /// table.
  void reap(CopyLane& lane);
  /// The same for dropped pieces. The gather of a dropped store may still write its region until it
  /// has ended.
  void drain();

  gpu::Device& device_;
  StagingRing& ring_;
  TransferTable& table_;
  // Only the transfer thread uses the members below.
  KnownBlocks known_;
  CheckSampler sampler_;
  Scrubber scrubber_;
  CopyLane loads_;
  CopyLane stores_;
  /// Dropped pieces whose gathers have not ended.
  std::vector<Piece> draining_;
  std::atomic<bool> ended_{false};  ///< The thread no longer touches anything.
  std::thread thread_;
};

}  // namespace kvferry::transfer
