// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/deadline.hpp"

#include <algorithm>
#include <chrono>
#include <thread>

namespace kvferry::gpu {

/// Calls `done` at least once, until it returns true or `bound` has passed, and returns its last
/// answer. Drivers have no wait with a bound. It yields for the first 20 us, which is about the
/// time of a small copy, and then sleeps up to 100 us at a time.
template <class Done>
[[nodiscard]] bool poll_until(std::chrono::nanoseconds bound, Done done) {
  constexpr std::chrono::microseconds kYieldFor{20};
  constexpr std::chrono::nanoseconds kLongestSleep = std::chrono::microseconds(100);
  if (done()) return true;
  const Deadline deadline(bound);
  const Deadline yielding(kYieldFor);
  std::chrono::nanoseconds sleep = std::chrono::microseconds(10);
  while (!deadline.passed()) {
    if (!yielding.passed()) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::min(sleep, deadline.remaining()));
      sleep = std::min(2 * sleep, kLongestSleep);
    }
    if (done()) return true;
  }
  return false;
}

}  // namespace kvferry::gpu
