// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/cpu_tier/arena.hpp"
#include "kvferry/gpu/device.hpp"
#include "kvferry/transfer/staging_ring.hpp"

#include "copy_lane.hpp"
#include "transfer_table.hpp"

#include <thread>
#include <vector>

namespace kvferry::transfer {

/// The transfer thread: feeds both lanes from the table, loads first, and takes ends from events
/// only.
class CopyPump {
 public:
  CopyPump(gpu::Device& device, const cpu_tier::Arena& arena, StagingRing& ring,
           TransferTable& table);
  /// Stops the thread; the table is closed and idle.
  ~CopyPump();
  CopyPump(const CopyPump&) = delete;
  CopyPump& operator=(const CopyPump&) = delete;

 private:
  void run();
  void reap(CopyLane& lane);
  void drain();

  StagingRing& ring_;
  TransferTable& table_;
  // From here on: the transfer thread's own.
  CopyLane loads_;
  CopyLane stores_;
  /// Dropped pieces whose gathers have not ended.
  std::vector<Piece> draining_;
  std::thread thread_;
};

}  // namespace kvferry::transfer
