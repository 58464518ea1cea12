// SPDX-License-Identifier: Apache-2.0
#include "store_pacer.hpp"

#include <algorithm>

namespace kvferry::transfer {

void StorePacer::start(std::uint64_t bytes, Time now) {
  if (bytes_per_second_ == 0) return;
  // The limit is a year, so that the slowest rate overflows no clock.
  constexpr double kLongestSeconds = 365.0 * 24 * 3600;
  const double seconds = std::min(
      static_cast<double>(bytes) / static_cast<double>(bytes_per_second_), kLongestSeconds);
  next_ = std::max(next_, now) + std::chrono::duration_cast<std::chrono::nanoseconds>(
                                     std::chrono::duration<double>(seconds));
}

}  // namespace kvferry::transfer
