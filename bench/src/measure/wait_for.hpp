// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/error.hpp"
#include "kvferry/gpu/device.hpp"

#include <chrono>

namespace kvferry::bench {

/// Longer than any measurement; a device that takes longer hangs.
inline constexpr std::chrono::minutes kHangs{5};

/// Waits until `event` is done. Throws DeviceError if it failed, or TimeoutError.
inline void wait_for(const gpu::Event& event) {
  switch (event.wait(kHangs)) {
    case gpu::EventState::kDone:
      return;
    case gpu::EventState::kFailed:
      throw DeviceError("the device failed: " + event.failure());
    case gpu::EventState::kPending:
    case gpu::EventState::kUnrecorded:
      break;
  }
  throw TimeoutError("the device has not ended its work within 5 minutes: it hangs");
}

}  // namespace kvferry::bench
