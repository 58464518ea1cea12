// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>

namespace kvferry::bench {

/// The time of a submission on the calling thread.
struct SubmitCost {
  std::chrono::nanoseconds wall{0};
  std::chrono::nanoseconds cpu{0};  ///< Of this thread only.
};

/// Measures from its construction on, on one thread.
class Stopwatch {
 public:
  Stopwatch();
  [[nodiscard]] SubmitCost cost() const;

 private:
  std::chrono::steady_clock::time_point wall_;
  std::chrono::nanoseconds cpu_;
};

}  // namespace kvferry::bench
