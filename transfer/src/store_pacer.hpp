// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>

namespace kvferry::transfer {

/// A token bucket for stores that holds one piece: a piece may start when the one before it has
/// taken its time at the rate, whatever its own size. Time that nothing used is not saved up. Not
/// thread-safe; the caller brings the time, which does not run backwards.
class StorePacer {
 public:
  using Time = std::chrono::steady_clock::time_point;

  /// 0: unlimited.
  explicit StorePacer(std::uint64_t bytes_per_second) : bytes_per_second_(bytes_per_second) {}

  [[nodiscard]] bool may_start(Time now) const { return now >= next_; }
  /// When the next piece may start.
  [[nodiscard]] Time next() const { return next_; }
  /// A piece starts.
  void start(std::uint64_t bytes, Time now);

 private:
  const std::uint64_t bytes_per_second_;
  Time next_ = Time::min();
};

}  // namespace kvferry::transfer
