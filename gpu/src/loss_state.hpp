// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/mutex.hpp"
#include "kvferry/gpu/device_loss.hpp"

#include <atomic>
#include <chrono>
#include <optional>
#include <string>

namespace kvferry::gpu {

/// Nobody wakes the waiters of a device that is lost, so they look once in this time.
inline constexpr std::chrono::nanoseconds kLossSlice = std::chrono::milliseconds(10);

/// Whether a device is lost. At first it is not. The first loss stays, with its reason and time.
/// Memory in doubt can become quiet, but not the other way round. Thread-safe; the check of a
/// working device costs one load.
class LossState {
 public:
  void lose(LostMemory memory, std::string why);

  [[nodiscard]] bool lost() const { return state_.load(std::memory_order_acquire) != kWell; }
  [[nodiscard]] bool in_doubt() const {
    return state_.load(std::memory_order_acquire) == kLostInDoubt;
  }
  [[nodiscard]] bool quiet() const { return state_.load(std::memory_order_acquire) == kLostQuiet; }
  /// The loss; nothing unless lost.
  [[nodiscard]] std::optional<DeviceLoss> loss() const;
  /// One line with the time and the reason; empty unless lost.
  [[nodiscard]] std::string why() const;
  /// Throws DeviceError with why() if lost.
  void throw_if_lost() const;

 private:
  enum State : std::uint8_t { kWell, kLostInDoubt, kLostQuiet };
  std::atomic<State> state_{kWell};
  mutable Mutex mutex_;
  std::optional<DeviceLoss> loss_ KVFERRY_GUARDED_BY(mutex_);
};

}  // namespace kvferry::gpu
