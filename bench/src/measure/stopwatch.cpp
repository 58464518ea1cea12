// SPDX-License-Identifier: Apache-2.0
#include "measure/stopwatch.hpp"

#include <ctime>

namespace kvferry::bench {
namespace {

std::chrono::nanoseconds thread_cpu_time() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

}  // namespace

// Reading the CPU clock is a system call, so it happens outside of the wall clock's span.
Stopwatch::Stopwatch() : wall_(), cpu_(thread_cpu_time()) {
  wall_ = std::chrono::steady_clock::now();
}

SubmitCost Stopwatch::cost() const {
  const auto wall = std::chrono::steady_clock::now() - wall_;
  return {wall, thread_cpu_time() - cpu_};
}

}  // namespace kvferry::bench
