// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "measure/stopwatch.hpp"

#include <algorithm>
#include <chrono>

namespace kvferry::bench {

/// The time of work() on this thread: its wall time, or its processor time if that is less because
/// another thread had the core meanwhile.
template <class Work>
[[nodiscard]] std::chrono::nanoseconds time_once(const Work& work) {
  const Stopwatch watch;
  work();
  const SubmitCost cost = watch.cost();
  return std::min(cost.wall, cost.cpu);
}

}  // namespace kvferry::bench
