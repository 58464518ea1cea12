// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>

namespace kvferry::transfer {

/// A token bucket for stores that holds one piece: a piece may start when the piece before it has
/// taken its time at the rate, whatever its own size. Unused time is not saved up. Not thread-safe.
/// The caller passes the time, which never decreases.
class StorePacer {
 public:
  using Time = std::chrono::steady_clock::time_point;

  /// 0: unlimited.
  explicit StorePacer(std::uint64_t bytes_per_second) : bytes_per_second_(bytes_per_second) {}

  [[nodiscard]] bool may_start(Time now) const { return now >= next_; }
  /// When the next piece may start.
  [[nodiscard]] Time next() const { return next_; }
  /// Notes that a piece starts.
  void start(std::uint64_t bytes, Time now);

 private:
  const std::uint64_t bytes_per_second_;
  Time next_ = Time::min();
};

}  // namespace kvferry::transfer
