// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/ids.hpp"
#include "kvferry/gpu/block_geometry.hpp"
#include "kvferry/gpu/device.hpp"
#include "kvferry/transfer/transfer_engine.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace kvferry::connector {

/// What one rank is told.
struct WorkerOptions {
  RankId rank;
  std::uint32_t world_size = 1;
  /// Slots of this rank's arena.
  std::uint32_t num_slots = 0;
  transfer::TransferOptions transfer;
  /// A transfer under way for longer than this is a fatal, named error of this worker: a copy that
  /// does not end cannot be reported as anything.
  std::chrono::nanoseconds transfer_timeout = std::chrono::seconds(300);
};

/// Loads that ended since the last collect(), by the engine's request ids, each load once.
struct EndedLoads {
  std::vector<std::string> ended;   ///< All of them, the failed included.
  std::vector<std::string> failed;  ///< Those whose blocks must not be used.
};

/// The worker side of one rank: executes the plans in order and reports. One thread at a time (the
/// engine's worker thread); copies run on threads of its own.
///
/// One step: bind(), any number of pump() while the forward runs, save(), collect(), take_report().
/// A step may leave out everything behind the bind (model runners return early); the next bind then
/// reports the stores it never saved as skipped.
class WorkerEngine {
 public:
  /// Makes arena, ring, streams and threads. The KV memory that `geometry` describes outlives this.
  /// Throws ResourceError, ConfigError or DeviceError; nothing is left behind then.
  WorkerEngine(std::unique_ptr<gpu::Device> device, gpu::BlockGeometry geometry,
               WorkerOptions options);
  /// close().
  ~WorkerEngine();
  WorkerEngine(const WorkerEngine&) = delete;
  WorkerEngine& operator=(const WorkerEngine&) = delete;

  /// Takes the encoded plan of this step over: records the fence on the compute stream, queues the
  /// loads behind it, and gathers what is ready. Before the forward. Throws ProtocolError for a
  /// plan that cannot be read, does not fit this rank, or is out of sequence.
  void bind(std::span<const std::byte> plan, std::uintptr_t compute_stream);
  /// Gathers what is ready and did not fit before. Free when nothing waits.
  void pump(std::uintptr_t compute_stream) {
    if (waiting()) gather_waiting(compute_stream);
  }
  /// Whether pump() has anything to try.
  [[nodiscard]] bool waiting() const { return !waiting_.empty(); }
  /// Behind the forward: gathers what this step completed, as far as the ring has room, and skips
  /// the rest of the plan.
  void save(std::uintptr_t compute_stream);

  /// What ended since the last call. Throws TimeoutError naming a transfer that is overdue.
  [[nodiscard]] EndedLoads collect();
  /// The encoded StepReport of everything since the last call; empty when there is nothing to say.
  [[nodiscard]] std::string take_report();

  /// Refuses new work, drops what is queued, waits for what runs. Idempotent. Throws TimeoutError
  /// after the transfer time-out: the memory is then still in use.
  void close();

  [[nodiscard]] std::uint64_t slot_bytes() const;
  [[nodiscard]] std::uint32_t num_slots() const;
  [[nodiscard]] transfer::TransferStats stats() const;

  /// For tests that prove that a wrong byte is noticed: overwrites the bytes of slot `to` by those
  /// of slot `source`.
  void unsafe_copy_slot(SlotId source, SlotId to);

 private:
  class Impl;
  void gather_waiting(std::uintptr_t compute_stream);

  /// Transfers with blocks still to be gathered in this step, in plan order; here so that pump() is
  /// free.
  struct WaitingStore {
    TransferId transfer;
    GroupId group;
    bool ready = false;
    std::vector<BlockSlot> blocks;
    std::uint32_t num_gathered = 0;
  };
  std::vector<WaitingStore> waiting_;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvferry::connector
