// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>

namespace kvferry {

/// The point in time at which a bounded wait gives up. Any bound is legal: a negative bound passes
/// at once, and a bound too long for the clock (nanoseconds::max()) is cut to kLongest.
class Deadline {
 public:
  static constexpr std::chrono::nanoseconds kLongest = std::chrono::hours(24 * 365);

  explicit Deadline(std::chrono::nanoseconds bound)
      : at_(std::chrono::steady_clock::now() +
            std::clamp(bound, std::chrono::nanoseconds::zero(), kLongest)) {}

  /// Time left, never negative; zero once passed.
  [[nodiscard]] std::chrono::nanoseconds remaining() const {
    return std::max<std::chrono::nanoseconds>(at_ - std::chrono::steady_clock::now(),
                                              std::chrono::nanoseconds::zero());
  }
  [[nodiscard]] bool passed() const { return remaining() == std::chrono::nanoseconds::zero(); }

 private:
  std::chrono::steady_clock::time_point at_;
};

}  // namespace kvferry
