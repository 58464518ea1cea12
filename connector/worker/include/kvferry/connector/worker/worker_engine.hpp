// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/ids.hpp"
#include "kvferry/cpu_tier/memory/arena.hpp"
#include "kvferry/cpu_tier/memory/replica_group.hpp"
#include "kvferry/cpu_tier/peers/shared_tier.hpp"
#include "kvferry/gpu/block_geometry.hpp"
#include "kvferry/gpu/device.hpp"
#include "kvferry/recorder/recorder.hpp"
#include "kvferry/transfer/transfer_engine.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace kvferry::connector {

/// A tier that engine instances of this node share.
struct SharedTierWish {
  cpu_tier::SharedTierOptions tier;
  /// The name under which this engine's scheduler joins the tier (cpu_tier/peers/joined_tier.hpp).
  std::string instance;
};

/// The options of one rank.
struct WorkerOptions {
  RankId rank;
  std::uint32_t world_size = 1;
  /// Chunks of this rank's arena. A chunk is as large as its slots of the class that takes the
  /// most bytes. In a shared tier the chunks are the tier's, and the slots have to fit into them.
  std::uint32_t num_chunks = 0;
  /// Slots in a chunk, by slab class.
  std::vector<std::uint32_t> slots_per_chunk{1};
  /// Bytes of a slot by slab class, at least those of a packed block: for layers with unknown
  /// content the scheduler side counts the padded page. Empty: as many as a block has.
  std::vector<std::uint64_t> slot_bytes = {};
  /// How the arena gets its memory. The worker itself sets `start` and `placement`.
  cpu_tier::ArenaOptions arena = {};
  /// The NUMA node of the arena; unset: the node next to the device.
  std::optional<std::uint32_t> numa_node = std::nullopt;
  /// Most bytes of it that become ready per second; 0: unlimited.
  std::uint64_t pinning_bandwidth_limit = 0;
  /// The ranks of this node that hold the same bytes. They have one arena: each rank stores the
  /// blocks in the pieces that it is home of, and loads all blocks.
  cpu_tier::ReplicaGroup replicas = {};
  /// The file that has the arena; unset: the arena is this engine's alone. Not together with
  /// `replicas`.
  std::optional<SharedTierWish> shared = std::nullopt;
  /// RankTopology::probe.
  std::uint64_t probe = 0;
  transfer::TransferOptions transfer;
  /// If no submitted copy of a direction of the link has ended for longer than this, the worker
  /// stops with an error that names the transfer, because it cannot report a copy that does not
  /// end. Neither copies in the queue nor a stop of the process count (TransferEngine::overdue()).
  std::chrono::nanoseconds transfer_timeout = std::chrono::seconds(300);
  /// Records what the rank is told and does. Null: nothing is recorded. Nobody else writes to it.
  std::shared_ptr<recorder::Recorder> recorder = nullptr;
};

/// How long a successful transfer took.
struct TransferTiming {
  transfer::TransferKind kind = transfer::TransferKind::kStore;
  std::chrono::nanoseconds queue_time{0};   ///< Until its first copy was submitted.
  std::chrono::nanoseconds device_time{0};  ///< The device's own time, summed over all copies.
};

/// How many transfers' timings are kept until they are taken; of more, the first ones are kept.
/// One second has far fewer transfers, at 4 KiB per copy call of 4 us.
inline constexpr std::size_t kMaxTimings = 4096;

/// The worker side of one rank: executes the plans in order and reports. It is called by one thread
/// at a time (the engine's worker thread). Copies run on its own threads.
///
/// One step: bind(), any number of pump() while the forward runs, save(), collect(), take_report().
/// A step may leave out everything after the bind (model runners return early). The next bind then
/// reports the stores that were not saved as skipped.
///
/// Only the constructor, sleep(), wake(), close() and the destructor wait. bind(), pump() and
/// save() submit work to the device: a driver queues it, and the host back end gathers within the
/// call. They wait only if they get another compute stream than the call before: until the gathers
/// on the old one have ended. Otherwise nothing would order these before a load into their blocks.
class WorkerEngine {
 public:
  /// Makes arena, ring, streams and threads. Afterwards the arena's first piece is ready. The rest
  /// becomes ready on a separate thread (G9) and is reported as it does. `geometries` are of blocks
  /// that fill their slots, by slab class. The KV memory that they describe outlives this object.
  /// Throws ResourceError, ConfigError or DeviceError, and then leaves nothing behind.
  WorkerEngine(std::unique_ptr<gpu::Device> device, std::vector<gpu::BlockGeometry> geometries,
               const WorkerOptions& options);
  /// The same for blocks of one size.
  WorkerEngine(std::unique_ptr<gpu::Device> device, gpu::BlockGeometry geometry,
               const WorkerOptions& options)
      : WorkerEngine(std::move(device), std::vector{std::move(geometry)}, options) {}
  /// Calls close(). If the device is lost with memory in doubt, the arena and the device are never
  /// given back.
  ~WorkerEngine();
  WorkerEngine(const WorkerEngine&) = delete;
  WorkerEngine& operator=(const WorkerEngine&) = delete;

  /// Takes over the encoded plan of this step: records the fence on the compute stream, queues the
  /// loads after it, and gathers ready stores. Call it before the forward. Throws ProtocolError for
  /// a plan that cannot be read, does not fit this rank, or is out of sequence.
  void bind(std::span<const std::byte> plan, std::uintptr_t compute_stream);
  /// Gathers what is ready and did not fit before. Costs nothing if nothing waits.
  void pump(std::uintptr_t compute_stream) {
    if (waiting()) gather_waiting(compute_stream);
  }
  /// Whether pump() has blocks to gather.
  [[nodiscard]] bool waiting() const { return !waiting_.empty(); }
  /// Gathers what this step completed, as far as the ring has room, and skips the rest of the plan.
  /// Call it after the forward.
  void save(std::uintptr_t compute_stream);

  /// Takes note of the transfers that ended since the last call, for the next report. Returns the
  /// engine's ids of the requests whose failed load this rank has to announce as ended: the ids of
  /// the plans' notices, each once. The scheduler side announces the loads that succeeded. Throws
  /// TimeoutError with a transfer's name if the device or its link hangs. Throws ResourceError if
  /// the arena cannot reach its size and may not be smaller. Once the device is lost, every call
  /// throws DeviceError, which says what was lost, since when, and what is in quarantine.
  [[nodiscard]] std::vector<std::string> collect();
  /// The encoded StepReport of everything since the last call; empty if there is nothing to report
  /// and nothing is under way.
  [[nodiscard]] std::string take_report();

  /// To be called before the engine takes its KV cache away; wake() takes it back, possibly at
  /// another address. Skips what is bound and not saved, waits until every gather and copy has
  /// ended, and frees the device memory of the staging rings. The host memory stays and continues
  /// to become ready. A store that was gathered is then done. A load that ended here counts as
  /// cancelled, because the blocks that it filled go away. Until wake(), a plan that moves a block
  /// is a ProtocolError. Idempotent. Throws TimeoutError if no byte has moved for the transfer
  /// time-out, and DeviceError; then it does not sleep.
  void sleep();
  [[nodiscard]] bool is_asleep() const;
  /// Allocates device memory again for the KV cache, with blocks of the same sizes, by slab class.
  /// Does nothing if it does not sleep. Throws ConfigError, ResourceError or DeviceError; then it
  /// continues to sleep.
  void wake(std::vector<gpu::BlockGeometry> geometries);

  /// Refuses new work, drops queued copies, and waits for running ones. Idempotent. Throws
  /// TimeoutError after the transfer time-out; the memory is then still in use. Throws DeviceError
  /// at once if the rest is in quarantine.
  void close();

  /// Bytes of a slot of the first slab class. The next two functions count slots of that class,
  /// too.
  [[nodiscard]] std::uint64_t slot_bytes() const;
  /// Slots that are ready now.
  [[nodiscard]] std::uint32_t num_slots() const;
  /// Slots that will be ready, unless memory runs out.
  [[nodiscard]] std::uint32_t max_slots() const;
  /// What the host memory has so far, and why its growth ended early, if it did: one line for logs.
  /// Reads /proc, which takes milliseconds.
  [[nodiscard]] std::string arena_text() const;
  /// The same as figures: as of the start and, once the arena's growth has ended, as of that end.
  /// Reads nothing.
  [[nodiscard]] const cpu_tier::ArenaReport& arena_report() const;
  /// Warnings about the host memory for the user: one log line each.
  [[nodiscard]] const std::vector<std::string>& arena_warnings() const;
  [[nodiscard]] transfer::TransferStats stats() const;
  /// The timings of transfers that collect() saw end since the last call, at most kMaxTimings.
  [[nodiscard]] std::vector<TransferTiming> take_timings();
  /// The text of TransferEngine::copy_paths_text().
  [[nodiscard]] std::string copy_paths_text() const;
  /// Name, architecture and driver of the device, for logs.
  [[nodiscard]] std::string device_description() const;

  /// For tests which prove that a wrong byte is noticed: overwrites the bytes of slot `to` of the
  /// first class with those of slot `source`.
  void unsafe_copy_slot(SlotId source, SlotId to);

 private:
  class Impl;
  /// gather_ready() as a call of its own, which is recorded.
  void gather_waiting(std::uintptr_t compute_stream);
  /// Gathers what waits and is ready, as far as the ring has room.
  void gather_ready(std::uintptr_t compute_stream);
  /// Empties `waiting_`.
  void finish_stores();

  /// A store of the bound plan, with what this rank has gathered of it.
  struct WaitingStore {
    TransferId transfer;
    SlabClassId slab_class;
    /// Whether the blocks hold their content: from bind() on if the order says so, otherwise from
    /// save() on.
    bool ready = false;
    std::uint32_t num_ordered = 0;  ///< Blocks of the order, including other ranks'.
    /// The blocks that this rank stores, in the order of the StoreOrder: all blocks or, in a
    /// replica group, those whose slots this rank is home of.
    std::vector<BlockSlot> blocks;
    /// `blocks[i]` is number positions[i] of the order; empty if `blocks` is the whole order.
    std::vector<std::uint32_t> positions;
    std::uint32_t num_gathered = 0;  ///< How many of `blocks`, from the first on.

    /// How many of the order's first blocks need no more work of this rank: it has gathered them,
    /// or other ranks store them. This rank still has to gather the next block.
    [[nodiscard]] std::uint32_t gathered_prefix() const {
      if (num_gathered == blocks.size()) return num_ordered;
      return positions.empty() ? num_gathered : positions[num_gathered];
    }
  };
  /// All stores of the bound plan, in the plan's order. save() empties the list, or else the next
  /// bind(): blocks that are not gathered by then are skipped. It is here and not in Impl, so that
  /// pump() costs its caller one comparison when there is no store.
  std::vector<WaitingStore> waiting_;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvferry::connector
