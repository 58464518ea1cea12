// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/mutex.hpp"
#include "kvferry/gpu/device.hpp"

#include "driver/driver_api.hpp"
#include "driver/driver_pack.hpp"
#include "driver/driver_record.hpp"

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace kvferry::gpu {

class DriverContext;

/// Both kinds of stream: our own, or a view of the engine's. In addition to the contract of Stream:
///
/// - If a part of a submission entered the queue before the driver refused the rest, it cannot be
///   taken back. The submission does not throw: it counts as an operation that failed when it ran.
/// - A view refuses submissions while the engine captures its stream, because a replayed graph
///   would copy the blocks of the captured step.
class DriverStream final : public Stream {
 public:
  enum class Ownership : std::uint8_t { kOwned, kView };

  DriverStream(DriverContext& context, StreamHandle stream, Ownership ownership);
  DriverStream(const DriverStream&) = delete;
  DriverStream& operator=(const DriverStream&) = delete;
  ~DriverStream() override;

  void record(Event& event) override;
  void wait(const Event& event) override;
  void copy(CopyDirection direction, std::span<const CopyRun> runs, CopyCall call) override;
  void gather(const BlockGeometry& geometry, std::span<const BlockId> blocks, std::uintptr_t packed,
              std::uintptr_t sums) override;
  void scatter(const BlockGeometry& geometry, std::span<const BlockId> blocks,
               std::uintptr_t packed, std::uintptr_t sums) override;
  void sum(const BlockGeometry& geometry, std::span<const BlockId> blocks,
           std::uintptr_t sums) override;
  void fill(std::uintptr_t address, std::uint8_t value, std::uint64_t bytes) override;
  [[nodiscard]] bool synchronize(std::chrono::nanoseconds bound) override;

  /// The vendor's stream, which this object still owns.
  [[nodiscard]] StreamHandle native_handle() const { return stream_; }
  /// Notes that a submission failed half-way: the next record fails.
  void fail(std::string why);
  /// Notes that other code put work into the stream: synchronize() waits for that work too.
  void note_foreign_work() { mark_submitted(); }

 private:
  void pack(PackWay way, const BlockGeometry& geometry, std::span<const BlockId> blocks,
            std::uintptr_t packed, std::uintptr_t sums);
  /// Throws DeviceError if the stream can take no work. To be called within a DriverScope.
  void check_open();
  /// Whether `call` for this many runs is the batch call on this stream.
  [[nodiscard]] bool batches(CopyCall call, std::size_t num_runs) const;
  void copy_in_batches(CopyDirection direction, std::span<const CopyRun> runs);
  /// Whether a part of the submission is in the queue already.
  enum class Begun : std::uint8_t { kNo, kYes };
  void copy_one_by_one(CopyDirection direction, std::span<const CopyRun> runs, Begun begun);
  /// What happens to the stream's failure: the new record takes it, or it is left for the next one.
  enum class Failure : std::uint8_t { kTaken, kLeft };
  /// Marks this point with an event of the pool. Throws DeviceError.
  [[nodiscard]] std::shared_ptr<const DriverRecord> make_record(Failure failure);
  void mark_submitted();

  DriverContext& context_;
  const StreamHandle stream_;
  const Ownership ownership_;
  mutable Mutex mutex_;
  /// The first failure since the last record.
  std::string failure_ KVFERRY_GUARDED_BY(mutex_);
  std::shared_ptr<const DriverRecord> last_record_ KVFERRY_GUARDED_BY(mutex_);
  /// The number of calls that put work into the stream, and how many of them are before
  /// `last_record_`.
  std::uint64_t num_submitted_ KVFERRY_GUARDED_BY(mutex_) = 0;
  std::uint64_t num_covered_ KVFERRY_GUARDED_BY(mutex_) = 0;
  /// Set for the legacy default stream, which takes no batch call, or after the driver refused one.
  bool batch_refused_ KVFERRY_GUARDED_BY(mutex_);
};

}  // namespace kvferry::gpu
