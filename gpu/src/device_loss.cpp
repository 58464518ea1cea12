// SPDX-License-Identifier: Apache-2.0
#include "kvferry/gpu/device_loss.hpp"

#include <array>
#include <ctime>

namespace kvferry::gpu {

std::string utc_text(std::chrono::system_clock::time_point since) {
  const std::time_t seconds = std::chrono::system_clock::to_time_t(since);
  std::tm broken_down{};
  std::array<char, sizeof "9999-12-31 23:59:60 UTC"> text{};
  if (::gmtime_r(&seconds, &broken_down) == nullptr ||
      std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M:%S UTC", &broken_down) == 0) {
    return "an unknown time";
  }
  return text.data();
}

}  // namespace kvferry::gpu
