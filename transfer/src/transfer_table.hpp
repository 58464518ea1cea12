// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/mutex.hpp"
#include "kvferry/transfer/transfer_engine.hpp"

#include "copy_lane.hpp"
#include "copy_queue.hpp"
#include "gather_stage.hpp"
#include "lane_watch.hpp"
#include "piece.hpp"

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace kvferry::transfer {

/// All state that the threads share: the transfers under way, the queue, the bytes in flight, the
/// ends. It has one lock, under which no device is called.
///
/// A transfer ends when it is sealed, no gather() of it is running and no piece of it is left:
/// neither queued, nor in flight, nor dropped and still to be drained. Thread-safe.
class TransferTable {
 public:
  /// The next work of the transfer thread.
  struct Work {
    std::optional<Piece> submit;  ///< It counts as in flight from here on.
    std::vector<Piece> drain;     ///< Dropped before they were submitted.
    bool stop = false;
  };
  /// The directions whose oldest piece waits for the compute stream.
  struct HeldLanes {
    bool loads = false;
    bool stores = false;
  };
  /// Pieces that a lost device may still be working on.
  struct Doubt {
    std::uint64_t num_pieces = 0;
    std::uint64_t num_blocks = 0;
  };

  explicit TransferTable(const TransferOptions& options)
      : queue_(options.max_in_flight_bytes, options.store_bandwidth_limit) {}
  ~TransferTable();
  TransferTable(const TransferTable&) = delete;
  TransferTable& operator=(const TransferTable&) = delete;

  // Calls of the engine.

  /// Announces a gather() of a store. Returns false if it is to take nothing.
  [[nodiscard]] bool begin_gather(TransferId transfer);
  /// Whether begin_gather() would return true.
  [[nodiscard]] bool takes_blocks(TransferId transfer) const;
  void end_gather(TransferId transfer, GatherResult result);
  [[nodiscard]] bool seal(TransferId transfer);
  /// Queues a load. If there is a `failure`, the load ends at once.
  void add_load(TransferId transfer, std::vector<Piece> pieces, const std::string& failure);
  void cancel(TransferId transfer);
  void cancel_unbegun(TransferId transfer);
  [[nodiscard]] std::vector<Completion> poll();
  /// The counters without the ring's.
  [[nodiscard]] TransferStats stats() const;
  [[nodiscard]] std::optional<OverdueTransfer> overdue(std::chrono::nanoseconds bound);
  [[nodiscard]] bool wait_idle(std::chrono::nanoseconds bound) const;
  [[nodiscard]] bool close(std::chrono::nanoseconds bound);
  /// The time since the first close(); 0 before.
  [[nodiscard]] std::chrono::nanoseconds closed_for() const;
  /// Notes that the device is lost: queued pieces fail, and nothing new is taken. Can be called by
  /// any thread, any number of times.
  void lose(const gpu::DeviceLoss& loss);
  /// The quarantine without the staging memory; nothing unless the device is lost with memory in
  /// doubt.
  [[nodiscard]] std::optional<Quarantine> quarantine() const;
  /// Lets the transfer thread end. Nothing is under way by then.
  void stop();

  // Calls of the transfer thread.

  /// Waits for work, at most `bound`. From its return to the next call the thread counts as in the
  /// driver.
  [[nodiscard]] Work next(std::chrono::nanoseconds bound, HeldLanes held);
  /// Notes what the transfer thread holds and can never give back. It follows lose().
  void hold_in_doubt(const Doubt& doubt);
  /// Notes that a submitted piece ended. Its ring region is released already.
  void finish(const EndedPiece& ended);
  /// Notes that a piece from Work::drain ended. Its ring region is released already.
  void finish_drained(const Piece& piece);

 private:
  using Clock = LaneWatch::Clock;

  struct Transfer {
    TransferKind kind = TransferKind::kStore;
    Clock::time_point started;
    std::optional<Clock::time_point> first_submitted;
    bool gathering = false;
    bool sealed = false;
    bool cancelled = false;   ///< It takes no more; started pieces may still make it kDone.
    bool incomplete = false;  ///< A part was dropped or refused, not for a failure.
    bool failed = false;
    std::string failure;
    std::vector<DamagedSlot> damaged;
    bool failed_undamaged = false;  ///< It failed for another reason, too.
    std::uint64_t num_blocks = 0;
    std::uint64_t num_pieces = 0;  ///< Queued, in flight or draining.
    std::uint64_t bytes = 0;
    std::chrono::nanoseconds device_time{0};

    [[nodiscard]] bool takes_blocks() const { return !failed && !cancelled; }
  };
  using Transfers = std::unordered_map<TransferId, Transfer>;

  [[nodiscard]] Transfer& add(TransferId transfer, TransferKind kind) KVFERRY_REQUIRES(mutex_);
  [[nodiscard]] Transfer& find(TransferId transfer) KVFERRY_REQUIRES(mutex_);
  void drop(Transfer& transfer, Piece piece) KVFERRY_REQUIRES(mutex_);
  void drop_queued(TransferId id, Transfer& transfer) KVFERRY_REQUIRES(mutex_);
  void fail(TransferId id, Transfer& transfer, const std::string& failure) KVFERRY_REQUIRES(mutex_);
  void cancel_locked(TransferId id, Transfer& transfer) KVFERRY_REQUIRES(mutex_);
  void end_if_over(TransferId id) KVFERRY_REQUIRES(mutex_);
  /// Whether memory is in doubt.
  [[nodiscard]] bool in_doubt() const KVFERRY_REQUIRES(mutex_);
  /// Whether none of the transfers under way will ever end.
  [[nodiscard]] bool stuck() const KVFERRY_REQUIRES(mutex_);
  void erase(TransferId id) KVFERRY_REQUIRES(mutex_);
  [[nodiscard]] bool wait_idle_locked(std::chrono::nanoseconds bound) const
      KVFERRY_REQUIRES(mutex_);

  mutable Mutex mutex_;
  CondVar work_;
  mutable CondVar idle_;
  Transfers transfers_ KVFERRY_GUARDED_BY(mutex_);
  CopyQueue queue_ KVFERRY_GUARDED_BY(mutex_);
  LaneWatch watch_ KVFERRY_GUARDED_BY(mutex_);
  /// Dropped pieces for the transfer thread. Their gathers may still write the ring, and their
  /// events must not be destroyed under the lock.
  std::vector<Piece> dropped_ KVFERRY_GUARDED_BY(mutex_);
  std::vector<Completion> ends_ KVFERRY_GUARDED_BY(mutex_);
  /// Counters only; levels are computed when asked for.
  TransferStats counters_ KVFERRY_GUARDED_BY(mutex_);
  /// Stores that close() sealed in place of the engine; the engine's seal() is still to come.
  std::unordered_set<TransferId> sealed_by_close_ KVFERRY_GUARDED_BY(mutex_);
  std::optional<gpu::DeviceLoss> loss_ KVFERRY_GUARDED_BY(mutex_);
  Doubt doubt_ KVFERRY_GUARDED_BY(mutex_);
  bool closed_ KVFERRY_GUARDED_BY(mutex_) = false;
  Clock::time_point closed_at_ KVFERRY_GUARDED_BY(mutex_);
  bool stopped_ KVFERRY_GUARDED_BY(mutex_) = false;
};

}  // namespace kvferry::transfer
