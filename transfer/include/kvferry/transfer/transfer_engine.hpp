// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/ids.hpp"
#include "kvferry/base/outcome.hpp"
#include "kvferry/cpu_tier/memory/arena.hpp"
#include "kvferry/cpu_tier/memory/arena_slots.hpp"
#include "kvferry/gpu/block_geometry.hpp"
#include "kvferry/gpu/copy_path.hpp"
#include "kvferry/gpu/device.hpp"
#include "kvferry/transfer/quarantine.hpp"

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

/// Moves blocks between the engine's pool and the arena of one rank.
///
/// Store: gather() packs blocks into the staging ring on the engine's compute stream, and from then
/// on no block of the pool is involved; the store stream waits for the gather's event and copies
/// ring entries to slots. Load: the load stream waits for a fence on the compute stream and copies
/// slots to blocks, or has a kernel read them; or it copies whole slots to staging memory, and a
/// scatter on one of two other streams waits for that copy and the fence. All streams are fed by
/// one transfer thread from one queue, loads ahead of stores, with a bound on the bytes in flight
/// per direction, because copy engines serve first-in first-out and ignore priorities.
namespace kvferry::transfer {

struct TransferOptions {
  /// Device memory of the staging ring; 0 disables stores.
  std::uint64_t staging_bytes = 0;
  /// Most bytes submitted and not yet complete, per direction (docs/decisions/transfer.md). At
  /// least one piece is always let through.
  std::uint64_t max_in_flight_bytes = std::uint64_t{32} << 20;
  /// Most bytes of one submission; a transfer is cut into pieces of at most this (at least one
  /// block each). 0: by the device's link, so that the fixed cost of a piece is at most 1 % of its
  /// time: 8 to 64 MiB, but beyond 8 MiB at most half of `max_in_flight_bytes` and half of
  /// `staging_bytes`; 8 MiB on the host back end. The default window holds it at 16 MiB; PCIe 5 x16
  /// takes 32 MiB if that is 64 MiB.
  std::uint64_t piece_bytes = 0;
  /// The way that every piece which can go it takes; nothing: chosen for each piece by the rates of
  /// its size, number of runs and direction. Stores leave the ring by kPerRun or kBatch: for them
  /// the others mean nothing.
  std::optional<gpu::CopyPath> copy_path = std::nullopt;
  /// Device memory through which loads can go packed, in large pieces (kStaged); 0: none do.
  /// Allocated where some load may take it: not on the host back end nor with another path forced,
  /// unless kStaged is. A load's piece takes at most half of it. 32 MiB: the bytes in flight.
  std::uint64_t load_staging_bytes = std::uint64_t{32} << 20;
  /// Most bytes of stores that are started per second, with a burst of one piece; 0: unlimited.
  /// Continuous stores at link speed raise inter-token latency, 4 GB/s do not
  /// (docs/decisions/transfer.md). Loads are never paced.
  std::uint64_t store_bandwidth_limit = 0;
  /// How long the end of an engine waits for copies that do not end, from its first close() on.
  std::chrono::nanoseconds end_timeout = std::chrono::seconds(300);
};

/// The pieces of an engine whose link copies so many bytes per second
/// (TransferOptions::piece_bytes).
[[nodiscard]] std::uint64_t piece_bytes_of(const TransferOptions& options, double bytes_per_second);

enum class TransferKind : std::uint8_t { kStore, kLoad };

/// One transfer's end. Each transfer ends exactly once.
struct Completion {
  TransferId transfer;
  TransferKind kind = TransferKind::kStore;
  Outcome outcome = Outcome::kDone;
  std::string reason;       ///< Why it failed; empty otherwise.
  std::uint64_t bytes = 0;  ///< Bytes that arrived over the link.
  /// From gather or load() to the first submission; 0 without one.
  std::chrono::nanoseconds queue_time{0};
  std::chrono::nanoseconds device_time{0};  ///< Sum over pieces of the device's own time.
};

/// Counters since construction, and levels of now. Bytes count what arrived over the link, whatever
/// became of the transfer; blocks count those of transfers that ended as kDone.
struct TransferStats {
  std::uint64_t stored_bytes = 0;
  std::uint64_t loaded_bytes = 0;
  std::uint64_t stored_blocks = 0;
  std::uint64_t loaded_blocks = 0;
  std::uint64_t failed_transfers = 0;
  std::uint64_t cancelled_transfers = 0;
  std::uint64_t ring_used_bytes = 0;
  std::uint64_t ring_size_bytes = 0;
  std::uint64_t load_staging_used_bytes = 0;
  std::uint64_t load_staging_size_bytes = 0;
  std::uint64_t queued_bytes = 0;
  std::uint64_t in_flight_bytes = 0;
  /// Blocks of transfers that never end, because the device was lost with their memory in doubt.
  std::uint64_t quarantined_blocks = 0;
};

/// What does not go on.
enum class Stall : std::uint8_t {
  kLink,   ///< A direction of the link: the oldest copy that was submitted to it does not end.
  kDriver  ///< The transfer thread: a call of the device's driver does not return.
};

/// A transfer that does not end because the device or its link hangs.
struct OverdueTransfer {
  TransferId transfer;
  TransferKind kind = TransferKind::kStore;
  Stall stall = Stall::kLink;
  std::chrono::nanoseconds age{0};  ///< Of the stall, as far as it was seen to pass.
};

/// Blocks of one size: where they are, and where their slots are.
struct BlockClass {
  gpu::BlockGeometry geometry;
  cpu_tier::ArenaSlots slots;
};

/// Blocks of one slab class that a load fills.
struct LoadPart {
  SlabClassId slab_class;
  std::span<const BlockSlot> blocks;
};

/// A point of the compute stream that loads wait for; shared by the loads of one step.
using Fence = std::shared_ptr<gpu::Event>;

/// Moves blocks as the top of the file says.
///
/// Threads: gather(), seal(), fence(), load(), cancel(), cancel_unbegun(), sleep(), is_asleep() and
/// wake() are called by one thread, the engine's. Every other function may be called by any thread
/// at any time.
///
/// Errors: a device error of a transfer is told by its Completion and is never thrown. A class,
/// block or slot that does not exist is a ProtocolError, and then that call has queued nothing. Two
/// transfers under way with one id are a broken invariant.
///
/// On a lost device gather() takes nothing and load() ends as kFailed at once; what had not been
/// submitted ends as kFailed. What had been submitted and was not seen to end: with memory quiet it
/// ends as kFailed; with memory in doubt it never ends (quarantine()).
class TransferEngine {
 public:
  /// By slab class; no block is larger packed than its slots (ConfigError). Makes ring, streams and
  /// thread, and prepares the device for the geometries. `device` and the slots' arena outlive it.
  TransferEngine(gpu::Device& device, std::vector<BlockClass> classes,
                 const TransferOptions& options);
  /// For an arena each of whose chunks is a slot, whatever the blocks' geometry.
  TransferEngine(gpu::Device& device, std::vector<gpu::BlockGeometry> geometries,
                 const cpu_tier::Arena& arena, const TransferOptions& options);
  /// end(). If that says no, what a device may still touch is left behind until the process ends;
  /// stderr has a line about it, unless the device is lost. Then the owner has to keep the arena
  /// and the device as long: it asks end() before.
  ~TransferEngine();
  TransferEngine(const TransferEngine&) = delete;
  TransferEngine& operator=(const TransferEngine&) = delete;

  /// Gathers the longest prefix of `blocks` that the ring can take now, in one launch per
  /// contiguous ring region, on `compute` behind everything submitted there, and queues its copies.
  /// Returns the number gathered. Never waits. May be called several times for one transfer until
  /// it is sealed; the slots are distinct. A failing launch counts as gathered and, once sealed,
  /// ends the transfer as kFailed; a transfer that has failed or was cancelled takes nothing more.
  [[nodiscard]] std::uint32_t gather(gpu::Stream& compute, TransferId transfer,
                                     SlabClassId slab_class, std::span<const BlockSlot> blocks);
  /// No more gathers of this store: it may complete. Returns false if nothing had been gathered,
  /// and then there is no Completion. Once per transfer.
  bool seal(TransferId transfer);

  /// Records a fence on `compute`. Null if the device refuses: loads behind a null fence end as
  /// kFailed.
  [[nodiscard]] Fence fence(gpu::Stream& compute);
  /// Queues a load behind `fence`, ahead of all queued stores. One without blocks completes at
  /// once. A fence that fails (the compute stream is broken) fails the load. No block is in two
  /// loads under way, nor twice in one: they have no order among them, and may end in any.
  void load(TransferId transfer, std::span<const LoadPart> parts, Fence fence);
  /// For blocks of one class.
  void load(TransferId transfer, SlabClassId slab_class, std::span<const BlockSlot> blocks,
            Fence fence) {
    const LoadPart part{slab_class, blocks};
    load(transfer, {&part, 1}, std::move(fence));
  }

  /// Drops what is queued of a transfer; what runs is waited for by the transfer thread, then it
  /// completes (a store that is not sealed: once it is). Unknown or ended transfers are ignored.
  void cancel(TransferId transfer);
  /// cancel() of a load of which no copy has been submitted: nothing of it is in doubt, and nothing
  /// of it was done. One that has begun goes on. Stores, unknown and ended transfers are ignored.
  void cancel_unbegun(TransferId transfer);

  /// Ends since the last call, in order.
  [[nodiscard]] std::vector<Completion> poll();
  [[nodiscard]] TransferStats stats() const;
  /// Which way pieces go and what was measured, in a few lines for a log.
  [[nodiscard]] std::string copy_paths_text() const;
  /// TransferOptions::piece_bytes, or what was chosen by the link.
  [[nodiscard]] std::uint64_t piece_bytes() const;
  /// The transfer of a direction's oldest copy, if that has been the oldest one submitted for
  /// longer than `bound` and has not ended, whatever became of younger ones; or, if a driver's call
  /// has not returned for so long, the oldest transfer of all. What waits in the queue (for the
  /// link, or for its turn at `store_bandwidth_limit`) is never overdue, nor is a copy that waits
  /// for the compute stream: that stream is the engine's, which awaits it in every step. Time
  /// counts only while this process runs: of a stop (SIGSTOP, a frozen cgroup, a debugger) a tenth
  /// of a second at most.
  [[nodiscard]] std::optional<OverdueTransfer> overdue(std::chrono::nanoseconds bound) const;
  /// What the device's loss left in doubt; nothing while it is well or lost and quiet. The numbers
  /// are those of now: right after the loss they may still change.
  [[nodiscard]] std::optional<Quarantine> quarantine() const;
  /// Waits until no transfer is under way, at most `bound`; returns whether that is so. Returns at
  /// once when those that are left will never end.
  [[nodiscard]] bool wait_idle(std::chrono::nanoseconds bound) const;

  /// Waits until no transfer is under way, at most `bound`, and then gives back the device memory
  /// that this has: the engine is about to take its KV cache away. From then on to wake() gather()
  /// takes nothing, and load() ends as kFailed; ends remain to be polled. Returns whether it sleeps
  /// now; false as wait_idle(), and then nothing has changed. Every store is sealed. Idempotent.
  [[nodiscard]] bool sleep(std::chrono::nanoseconds bound);
  [[nodiscard]] bool is_asleep() const;
  /// Takes the device memory again, for blocks of the same sizes that may lie elsewhere now; by
  /// slab class. Nothing if this does not sleep. Throws ConfigError for other sizes, ResourceError
  /// or DeviceError: it sleeps on then, without any device memory.
  void wake(std::vector<gpu::BlockGeometry> geometries);

  /// Refuses new work (gather() then takes nothing, load() completes as kCancelled), drops what is
  /// queued, seals every store, waits for what runs, at most `bound`. Ends remain to be polled.
  /// Returns whether all is quiet; false at once when what is left is in quarantine. Idempotent.
  [[nodiscard]] bool close(std::chrono::nanoseconds bound);
  /// close() with what is left of TransferOptions::end_timeout since the first close(). Once it has
  /// said no it waits no longer.
  [[nodiscard]] bool end();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvferry::transfer
