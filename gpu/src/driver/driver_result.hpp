// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace kvferry::gpu {

/// What a vendor call came to, in words that both vendors share.
enum class DriverStatus : std::uint8_t {
  kSuccess,
  /// Of a query: the work has not ended.
  kNotReady,
  kOutOfMemory,
  /// The driver has no such function, or not for this argument.
  kNotSupported,
  /// The context can do nothing any more; every later call fails too. What was in flight may still
  /// run.
  kLost,
  /// There is no context any more, so that nothing of it runs: the process is ending, or somebody
  /// destroyed it.
  kGone,
  /// This call failed and no other.
  kFailed
};

/// Status and the vendor's own code, for the message.
struct [[nodiscard]] DriverResult {
  DriverStatus status = DriverStatus::kSuccess;
  int code = 0;
  [[nodiscard]] bool ok() const { return status == DriverStatus::kSuccess; }
};

/// What a vendor call returned; `value` means something only if the result is ok.
template <class T>
struct [[nodiscard]] DriverValue {
  DriverResult result;
  T value{};
};

}  // namespace kvferry::gpu
