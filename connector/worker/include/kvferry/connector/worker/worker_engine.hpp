// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/ids.hpp"
#include "kvferry/cpu_tier/memory/arena.hpp"
#include "kvferry/cpu_tier/memory/replica_group.hpp"
#include "kvferry/cpu_tier/peers/shared_tier.hpp"
#include "kvferry/gpu/block_geometry.hpp"
#include "kvferry/gpu/device.hpp"
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
  /// Of this engine, as its scheduler joins under (cpu_tier/joined_tier.hpp).
  std::string instance;
};

/// What one rank is told.
struct WorkerOptions {
  RankId rank;
  std::uint32_t world_size = 1;
  /// Chunks of this rank's arena, which are as large as their slots of some class; of a shared
  /// tier, as that is divided, and slots have to fit.
  std::uint32_t num_chunks = 0;
  /// Slots in a chunk, by slab class.
  std::vector<std::uint32_t> slots_per_chunk{1};
  /// Bytes of a slot by slab class, no fewer than a packed block has: the scheduler side counts a
  /// layer's padded page where it does not know the content. Empty: as many as a block has.
  std::vector<std::uint64_t> slot_bytes = {};
  /// How it gets its memory. The worker itself says `start` and `placement`.
  cpu_tier::ArenaOptions arena = {};
  /// Where it is to lie; unset: next to the device.
  std::optional<std::uint32_t> numa_node = std::nullopt;
  /// Most bytes of it that become ready per second; 0: as they come.
  std::uint64_t pinning_bandwidth_limit = 0;
  /// The ranks of this node that hold the same bytes: they have one arena, of which each stores the
  /// blocks in the pieces that it is home of, and loads all.
  cpu_tier::ReplicaGroup replicas = {};
  /// The file that has the arena; unset: it is this engine's alone. Not together with `replicas`.
  std::optional<SharedTierWish> shared = std::nullopt;
  /// RankTopology::probe.
  std::uint64_t probe = 0;
  transfer::TransferOptions transfer;
  /// A direction of the link in which no submitted copy has ended for longer than this is a fatal,
  /// named error of this worker: a copy that does not end cannot be reported as anything. Neither
  /// what waits in the queue nor a stop of the process counts (TransferEngine::overdue()).
  std::chrono::nanoseconds transfer_timeout = std::chrono::seconds(300);
};

/// How long a transfer took that succeeded.
struct TransferTiming {
  transfer::TransferKind kind = transfer::TransferKind::kStore;
  std::chrono::nanoseconds queue_time{0};   ///< Until its first copy was submitted.
  std::chrono::nanoseconds device_time{0};  ///< The device's own, over all of its copies.
};

/// Transfers whose timings are kept until they are taken; of more in between, the first. A second's
/// worth at 4 KiB per copy call of 4 us is far below.
inline constexpr std::size_t kMaxTimings = 4096;

/// The worker side of one rank: executes the plans in order and reports. One thread at a time (the
/// engine's worker thread); copies run on threads of its own.
///
/// One step: bind(), any number of pump() while the forward runs, save(), collect(), take_report().
/// A step may leave out everything after the bind (model runners return early); the next bind then
/// reports the stores it never saved as skipped.
///
/// Only the constructor, sleep(), wake(), close() and the destructor wait. bind(), pump() and
/// save() submit work to the device: a driver queues it, and the host back end gathers within the
/// call.
class WorkerEngine {
 public:
  /// Makes arena, ring, streams and threads. The arena's first piece is ready then; the rest
  /// becomes so on a thread of its own (G9) and is reported step by step. `geometries`: by slab
  /// class, of blocks that fill their slots. The KV memory that they describe outlives this. Throws
  /// ResourceError, ConfigError or DeviceError; nothing is left behind then.
  WorkerEngine(std::unique_ptr<gpu::Device> device, std::vector<gpu::BlockGeometry> geometries,
               const WorkerOptions& options);
  /// For blocks of one size.
  WorkerEngine(std::unique_ptr<gpu::Device> device, gpu::BlockGeometry geometry,
               const WorkerOptions& options)
      : WorkerEngine(std::move(device), std::vector{std::move(geometry)}, options) {}
  /// close(). If the device is lost with memory in doubt, the arena and the device are left behind
  /// for ever instead of given back.
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

  /// Takes note of what ended since the last call, for the next report. Returns the engine's ids of
  /// the requests whose load this rank has to announce as ended and failed: those of the plans'
  /// notices, each once. A load that succeeded is announced by the scheduler side. Throws
  /// TimeoutError naming a transfer if the device or its link hangs, ResourceError if the arena
  /// cannot become as large as it was to be and may not stay smaller, and DeviceError from then on
  /// once the device is lost: it says what was lost, since when, and what stays in quarantine.
  [[nodiscard]] std::vector<std::string> collect();
  /// The encoded StepReport of everything since the last call; empty when there is nothing to say
  /// and nothing under way.
  [[nodiscard]] std::string take_report();

  /// The engine is about to take its KV cache away, and to give it back by wake(), maybe elsewhere.
  /// Skips what is bound and not saved, waits until every gather and copy has ended, and gives the
  /// device memory of the staging rings back; the host memory stays, and is ready on. A store that
  /// was gathered is done then; a load that ended here is cancelled, as the blocks go away that it
  /// filled. Until wake() a plan that moves a block is a ProtocolError. Idempotent. Throws
  /// TimeoutError if no byte has moved for the transfer time-out, and DeviceError: it does not
  /// sleep then.
  void sleep();
  [[nodiscard]] bool is_asleep() const;
  /// Takes device memory for the KV cache again, of blocks of the same sizes, by slab class.
  /// Nothing if it does not sleep. Throws ConfigError, ResourceError or DeviceError: it sleeps on
  /// then.
  void wake(std::vector<gpu::BlockGeometry> geometries);

  /// Refuses new work, drops what is queued, waits for what runs. Idempotent. Throws TimeoutError
  /// after the transfer time-out: the memory is then still in use. Throws DeviceError at once if
  /// what is left is in quarantine.
  void close();

  /// Of the first slab class, as are the slots counted by the next two.
  [[nodiscard]] std::uint64_t slot_bytes() const;
  /// That are ready now.
  [[nodiscard]] std::uint32_t num_slots() const;
  /// That will be ready, unless memory runs out.
  [[nodiscard]] std::uint32_t max_slots() const;
  /// What was obtained of the host memory so far, and why its growth ended early, if it did: for
  /// logs, in one line. Reads /proc: milliseconds.
  [[nodiscard]] std::string arena_text() const;
  /// The same as figures, as of the start, and later as of the end of the arena's growth. Reads
  /// nothing.
  [[nodiscard]] const cpu_tier::ArenaReport& arena_report() const;
  /// What the user is to be warned of about the host memory: for logs, a line each.
  [[nodiscard]] const std::vector<std::string>& arena_warnings() const;
  [[nodiscard]] transfer::TransferStats stats() const;
  /// Of the transfers that collect() has seen end since the last call, kMaxTimings at most.
  [[nodiscard]] std::vector<TransferTiming> take_timings();
  /// As TransferEngine says.
  [[nodiscard]] std::string copy_paths_text() const;
  /// Name, architecture and driver of the device, for logs.
  [[nodiscard]] std::string device_description() const;

  /// For tests that prove that a wrong byte is noticed: overwrites the bytes of slot `to` of the
  /// first class by those of slot `source`.
  void unsafe_copy_slot(SlotId source, SlotId to);

 private:
  class Impl;
  void gather_waiting(std::uintptr_t compute_stream);
  /// Ends the list of `waiting_`.
  void finish_stores();

  /// A store of the plan that is bound, as far as this rank has gathered it.
  struct WaitingStore {
    TransferId transfer;
    SlabClassId slab_class;
    /// The blocks hold their content: from bind() on if the order says so, else from save() on.
    bool ready = false;
    std::uint32_t num_ordered = 0;  ///< Blocks of the order, other ranks' too.
    /// Those that this rank stores, in the order's order: all, or in a replica group the ones whose
    /// slots it is home of.
    std::vector<BlockSlot> blocks;
    /// `blocks[i]` is number positions[i] of the order; empty if `blocks` is all of the order.
    std::vector<std::uint32_t> positions;
    std::uint32_t num_gathered = 0;  ///< The first ones of `blocks`.

    /// How many of the order's first blocks need nothing more of this rank: it has gathered them,
    /// or other ranks store them. The next block is one that it was to gather and has not.
    [[nodiscard]] std::uint32_t gathered_prefix() const {
      if (num_gathered == blocks.size()) return num_ordered;
      return positions.empty() ? num_gathered : positions[num_gathered];
    }
  };
  /// All stores of the plan that is bound, in the plan's order. save() ends the list, or else the
  /// next bind(): blocks that are not gathered by then are skipped. It is here and not in Impl, so
  /// that pump() costs its caller one comparison when there is no store.
  std::vector<WaitingStore> waiting_;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvferry::connector
