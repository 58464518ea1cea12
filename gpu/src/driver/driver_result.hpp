// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace kvferry::gpu {

/// The outcome of a vendor call, in terms that both vendors share.
enum class DriverStatus : std::uint8_t {
  kSuccess,
  /// For a query: the work has not ended.
  kNotReady,
  kOutOfMemory,
  /// The driver does not have the function, or does not support it with this argument.
  kNotSupported,
  /// The context is lost: every later call fails too. Work in flight may still run.
  kLost,
  /// There is no context any more, so none of its work runs: the process is ending, or other code
  /// destroyed the context.
  kGone,
  /// This call failed, and only this one.
  kFailed
};

/// The status, and the vendor's own code for the message.
struct [[nodiscard]] DriverResult {
  DriverStatus status = DriverStatus::kSuccess;
  int code = 0;
  [[nodiscard]] bool ok() const { return status == DriverStatus::kSuccess; }
};

/// The result of a vendor call with its `value`, which is valid only if the result is ok.
template <class T>
struct [[nodiscard]] DriverValue {
  DriverResult result;
  T value{};
};

}  // namespace kvferry::gpu
