// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/mutex.hpp"
#include "kvferry/transfer/transfer_engine.hpp"

#include "known_blocks.hpp"

#include <chrono>
#include <cstdint>
#include <vector>

namespace kvferry::transfer {

/// Reads slots again without a load, and compares their bytes with what the store of each slot
/// left. It reads on the host, while nothing of this engine is on the link. So the slots must have
/// no other writer, and it is not for a shared tier.
///
/// The transfer thread calls scrub_one() and wait(); any thread may call the others.
class Scrubber {
 public:
  /// If `bytes_per_second` is 0, it reads nothing.
  Scrubber(KnownBlocks& known, const std::vector<BlockClass>& classes,
           std::uint64_t bytes_per_second);

  /// Reads one slot if the rate allows it, which takes some milliseconds at most. No device writes
  /// to the slots meanwhile.
  void scrub_one();
  /// The time until the next read; `idle` if there is nothing to do.
  [[nodiscard]] std::chrono::nanoseconds wait(std::chrono::nanoseconds idle) const;

  /// The slots that were found damaged since the last call. Each is found once.
  [[nodiscard]] std::vector<DamagedSlot> take_findings();
  /// The number of slots that it has read.
  [[nodiscard]] std::uint64_t num_read() const;

 private:
  using Clock = std::chrono::steady_clock;
  struct Class {
    cpu_tier::ArenaSlots slots;
    std::uint64_t packed_bytes;
  };

  /// Whether the slot's bytes are still as known; also true if they are being given up.
  [[nodiscard]] static bool is_whole(const Class& of, const KnownBlocks::Place& place);

  KnownBlocks& known_;
  /// Copies, which stay the same while the engine changes its own during a sleep.
  const std::vector<Class> classes_;
  const std::uint64_t bytes_per_second_;
  Clock::time_point next_;
  mutable Mutex mutex_;
  std::vector<DamagedSlot> findings_ KVFERRY_GUARDED_BY(mutex_);
  std::uint64_t num_read_ KVFERRY_GUARDED_BY(mutex_) = 0;
};

}  // namespace kvferry::transfer
