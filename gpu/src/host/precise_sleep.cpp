// SPDX-License-Identifier: Apache-2.0
#include "host/precise_sleep.hpp"

#include <thread>

namespace kvferry::gpu {

void sleep_precisely_until(std::chrono::steady_clock::time_point when) {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::microseconds kSpin{50};
  if (when - Clock::now() > kSpin) std::this_thread::sleep_until(when - kSpin);
  while (Clock::now() < when) std::this_thread::yield();
}

}  // namespace kvferry::gpu
