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
/// Store: gather() packs blocks into the staging ring on the engine's compute stream. From then on
/// no block of the pool is involved. The store stream waits for the gather's event and copies ring
/// entries to slots. Load: the load stream waits for a fence on the compute stream and copies slots
/// to blocks, or a kernel reads the slots. Alternatively it copies whole slots to staging memory,
/// and a scatter on one of two other streams waits for that copy and the fence. One transfer thread
/// feeds all streams from one queue, loads before stores. The bytes in flight are limited per
/// direction, because copy engines work first-in first-out and ignore priorities.
namespace kvferry::transfer {

/// Which loaded blocks are checked. kSampled checks a sample that costs 1 % of the loads' time at
/// most, and every block of another engine when it is loaded for the first time.
enum class Verification : std::uint8_t { kOff, kSampled, kAll };

struct TransferOptions {
  /// Device memory of the staging ring; 0 disables stores.
  std::uint64_t staging_bytes = 0;
  /// Most bytes that are submitted and not yet complete, per direction
  /// (docs/decisions/transfer.md). One piece is always allowed.
  std::uint64_t max_in_flight_bytes = std::uint64_t{32} << 20;
  /// Most bytes of one submission. A transfer is cut into pieces of at most this size (at least one
  /// block each). 0: chosen by the device's link, so that the fixed cost of a piece is at most 1 %
  /// of its time: 8 to 64 MiB, but beyond 8 MiB at most half of `max_in_flight_bytes` and half of
  /// `staging_bytes`; 8 MiB on the host back end. The default `max_in_flight_bytes` limits it to 16
  /// MiB; with 64 MiB, PCIe 5 x16 gets 32 MiB.
  std::uint64_t piece_bytes = 0;
  /// The path of every piece that can take it. Nothing: chosen for each piece by the measured rates
  /// for its size, number of runs and direction. Stores leave the ring only by kPerRun or kBatch;
  /// the other values do not affect them.
  std::optional<gpu::CopyPath> copy_path = std::nullopt;
  /// Device memory for loads that are copied packed, in large pieces, and then scattered (kStaged);
  /// 0: no load uses this path. It is allocated only if some load can use it: on the host back end
  /// only if kStaged is forced, and not if another path is forced. A load's piece takes at most
  /// half of it. 32 MiB: the bytes in flight.
  std::uint64_t load_staging_bytes = std::uint64_t{32} << 20;
  /// Most bytes of stores that are started per second, with a burst of one piece; 0: unlimited.
  /// Continuous stores at link speed raise inter-token latency; stores at 4 GB/s do not
  /// (docs/decisions/transfer.md). Loads have no such limit.
  std::uint64_t store_bandwidth_limit = 0;
  /// Whether a store leaves a tag for each block, and a load checks that it brings back the same
  /// bytes for the same block (docs/ARCHITECTURE.md). Only on devices that can
  /// (DeviceTraits::has_pack_kernels). Off until its cost is known on GPUs.
  Verification verify = Verification::kOff;
  /// Bytes per second of stored blocks that the transfer thread reads again while nothing is on the
  /// link, to find damage before a load does; 0: none. Only if `verify` is not kOff, and only for
  /// an arena that no other engine writes to.
  std::uint64_t scrub_bandwidth = 0;
  /// How long an engine that ends waits for its copies, counted from its first close().
  std::chrono::nanoseconds end_timeout = std::chrono::seconds(300);
};

/// The piece size for a link that copies this many bytes per second (TransferOptions::piece_bytes).
[[nodiscard]] std::uint64_t piece_bytes_of(const TransferOptions& options, double bytes_per_second);

enum class TransferKind : std::uint8_t { kStore, kLoad };

/// The end of one transfer. Each transfer ends exactly once.
struct Completion {
  TransferId transfer;
  TransferKind kind = TransferKind::kStore;
  Outcome outcome = Outcome::kDone;
  std::string reason;  ///< Why it failed; empty otherwise.
  /// The damaged slots of a load, ascending, each once. If it is not empty, the load failed for
  /// this reason only. More slots than these can be damaged.
  std::vector<DamagedSlot> damaged;
  std::uint64_t bytes = 0;  ///< Bytes that arrived over the link.
  /// From gather() or load() to the first submission; 0 if there was none.
  std::chrono::nanoseconds queue_time{0};
  std::chrono::nanoseconds device_time{0};  ///< Sum over pieces of the device's own time.
};

/// Counters since construction, and current levels. Byte counts include everything that arrived
/// over the link, however the transfer ended. Block counts include only transfers that ended as
/// kDone.
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
  /// Blocks of transfers that will never end, because the device was lost with their memory in
  /// doubt.
  std::uint64_t quarantined_blocks = 0;
  /// Slots that were read again (TransferOptions::scrub_bandwidth).
  std::uint64_t scrubbed_slots = 0;
};

/// What is stuck.
enum class Stall : std::uint8_t {
  kLink,   ///< One direction of the link: its oldest submitted copy does not end.
  kDriver  ///< The transfer thread: a driver call does not return.
};

/// A transfer that does not end because the device or its link hangs.
struct OverdueTransfer {
  TransferId transfer;
  TransferKind kind = TransferKind::kStore;
  Stall stall = Stall::kLink;
  std::chrono::nanoseconds age{
      0};  ///< How long it has been stuck, in time that this process observed.
};

/// Blocks of one size: where the blocks are, and where their slots are.
struct BlockClass {
  gpu::BlockGeometry geometry;
  cpu_tier::ArenaSlots slots;
};

/// Blocks of one slab class that a load fills.
struct LoadPart {
  SlabClassId slab_class;
  std::span<const BlockSlot> blocks;
};

/// A point of the compute stream that loads wait for. The loads of one step share it.
using Fence = std::shared_ptr<gpu::Event>;

/// Moves blocks as described at the top of the file.
///
/// Threads: gather(), seal(), fence(), load(), cancel(), cancel_unbegun(), sleep(), is_asleep() and
/// wake() are called by one thread, the engine's. Every other function may be called by any thread
/// at any time.
///
/// Errors: a device error of a transfer is reported in its Completion and is never thrown. A class,
/// block or slot that does not exist is a ProtocolError, and the call has queued nothing. Two
/// transfers under way with the same id are a broken invariant.
///
/// On a lost device gather() takes nothing, load() ends as kFailed at once, and transfers that had
/// not been submitted end as kFailed. A transfer that had been submitted and was not seen to end
/// ends as kFailed if the memory is quiet; if the memory is in doubt, it never ends (quarantine()).
class TransferEngine {
 public:
  /// `classes` are indexed by slab class. A packed block must fit into its slot (ConfigError).
  /// Creates ring, streams and thread, and prepares the device for the geometries. `device` and the
  /// slots' arena outlive the engine.
  TransferEngine(gpu::Device& device, std::vector<BlockClass> classes,
                 const TransferOptions& options);
  /// For an arena in which each chunk is one slot, whatever the blocks' geometry.
  TransferEngine(gpu::Device& device, std::vector<gpu::BlockGeometry> geometries,
                 const cpu_tier::Arena& arena, const TransferOptions& options);
  /// Calls end(). If end() returns false, memory that a device could still touch is kept until the
  /// process ends, and stderr gets a line about it, unless the device is lost. If end() returns
  /// false, the owner must keep the arena and the device just as long, so it should call end()
  /// itself first.
  ~TransferEngine();
  TransferEngine(const TransferEngine&) = delete;
  TransferEngine& operator=(const TransferEngine&) = delete;

  /// Gathers the longest prefix of `blocks` that fits into the ring now, and queues its copies. The
  /// gathers run on `compute`, after everything that was submitted there, with one launch per
  /// contiguous ring region. Returns the number of gathered blocks. Never waits. Can be called
  /// several times for one transfer until it is sealed; the slots are distinct. The blocks of a
  /// failed launch count as gathered, and the transfer ends as kFailed after it is sealed. A
  /// transfer that has failed or was cancelled takes no more blocks.
  [[nodiscard]] std::uint32_t gather(gpu::Stream& compute, TransferId transfer,
                                     SlabClassId slab_class, std::span<const BlockSlot> blocks);
  /// Whether gather() takes blocks of this transfer if the ring has room and does not sleep: the
  /// transfer has not failed and was not cancelled, close() was not called, and the device is not
  /// lost.
  [[nodiscard]] bool takes_blocks(TransferId transfer) const;
  /// Declares that this store gathers no more blocks, so it can complete. Returns false if no block
  /// had been gathered; then there is no Completion. Call it once per transfer.
  bool seal(TransferId transfer);

  /// Records a fence on `compute`. Returns null if the device refuses; loads with a null fence end
  /// as kFailed.
  [[nodiscard]] Fence fence(gpu::Stream& compute);
  /// Queues a load that starts after `fence`, before all queued stores. A load without blocks
  /// completes at once. A fence that fails (the compute stream is broken) fails the load. A block
  /// must not be in two loads under way, nor twice in one load, because loads run and end in any
  /// order.
  void load(TransferId transfer, std::span<const LoadPart> parts, const Fence& fence);
  /// The same for blocks of one class.
  void load(TransferId transfer, SlabClassId slab_class, std::span<const BlockSlot> blocks,
            const Fence& fence) {
    const LoadPart part{slab_class, blocks};
    load(transfer, {&part, 1}, fence);
  }

  /// Drops the queued pieces of a transfer. The transfer thread waits for the running pieces, and
  /// then the transfer completes (a store: not before it is sealed). Unknown or ended transfers are
  /// ignored.
  void cancel(TransferId transfer);
  /// Cancels a load only if no copy of it has been submitted, so no memory is in doubt and no byte
  /// was copied. A load that has begun continues. Stores, unknown and ended transfers are ignored.
  void cancel_unbegun(TransferId transfer);

  /// The transfers that ended since the last call, in order.
  [[nodiscard]] std::vector<Completion> poll();
  /// The slots that were read again and found damaged since the last call.
  [[nodiscard]] std::vector<DamagedSlot> take_scrub_findings();
  [[nodiscard]] TransferStats stats() const;
  /// Which path pieces take and the measured rates, in a few lines for a log.
  [[nodiscard]] std::string copy_paths_text() const;
  /// TransferOptions::piece_bytes, or the size that was chosen by the link.
  [[nodiscard]] std::uint64_t piece_bytes() const;
  /// Finds a stuck transfer. It is the transfer of a direction's oldest submitted copy, if that
  /// copy has been the oldest for longer than `bound` and has not ended, whether younger copies
  /// ended or not. Or, if a driver call has not returned for that long, it is the oldest transfer
  /// of all. A transfer that waits in the queue (for the link, or because of
  /// `store_bandwidth_limit`) is never overdue. Nor is a copy that waits for the compute stream,
  /// because the engine itself waits for that stream in every step. Time counts only while this
  /// process runs: a stop (SIGSTOP, a frozen cgroup, a debugger) counts as a tenth of a second at
  /// most.
  [[nodiscard]] std::optional<OverdueTransfer> overdue(std::chrono::nanoseconds bound) const;
  /// The memory that is in doubt because the device was lost; nothing if the device works, or was
  /// lost with its memory quiet. The numbers are current: right after the loss they can still
  /// change.
  [[nodiscard]] std::optional<Quarantine> quarantine() const;
  /// Waits until no transfer is under way, at most `bound`; returns whether none is. Returns at
  /// once if the remaining transfers will never end.
  [[nodiscard]] bool wait_idle(std::chrono::nanoseconds bound) const;

  /// Waits until no transfer is under way, at most `bound`, and then frees this object's device
  /// memory, because the engine is about to free its KV cache. From then until wake(), gather()
  /// takes nothing and load() ends as kFailed; earlier ends can still be polled. Returns whether it
  /// sleeps now. It returns false in the same cases as wait_idle(), and then nothing has changed.
  /// Every store must be sealed. Idempotent.
  [[nodiscard]] bool sleep(std::chrono::nanoseconds bound);
  [[nodiscard]] bool is_asleep() const;
  /// Allocates the device memory again, for blocks of the same sizes that can lie elsewhere now;
  /// indexed by slab class. Does nothing if this does not sleep. Throws ConfigError for other
  /// sizes, ResourceError or DeviceError; then it continues to sleep, without any device memory.
  void wake(std::vector<gpu::BlockGeometry> geometries);

  /// Refuses new work (gather() takes nothing, load() completes as kCancelled), drops queued
  /// pieces, seals every store, and waits for running copies, at most `bound`. Ends can still be
  /// polled. Returns whether all transfers have ended; returns false at once if the remaining ones
  /// are in quarantine. Idempotent.
  [[nodiscard]] bool close(std::chrono::nanoseconds bound);
  /// close() with the time that is left of TransferOptions::end_timeout since the first close().
  /// After it has returned false once, it does not wait again.
  [[nodiscard]] bool end();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvferry::transfer
