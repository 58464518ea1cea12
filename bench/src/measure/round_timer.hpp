// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/gpu/device.hpp"

#include "measure/lane.hpp"
#include "measure/stopwatch.hpp"

#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

namespace kvferry::bench {

/// The times of one round of all lanes.
struct RoundTime {
  SubmitCost submit;
  /// By the device's events: from before the first byte of any lane until after the last byte of
  /// every lane.
  std::chrono::nanoseconds device{0};
};

/// Times lanes that run at the same time; one thread submits to all of them in turn. The lanes
/// outlive it.
class RoundTimer {
 public:
  /// Throws DeviceError.
  RoundTimer(gpu::Device& device, std::span<const std::unique_ptr<Lane>> lanes);
  /// Submits every set of every lane to its route `way`, and waits for the end. Throws DeviceError.
  [[nodiscard]] RoundTime run(std::size_t way);

 private:
  std::span<const std::unique_ptr<Lane>> lanes_;
  std::unique_ptr<gpu::Event> begin_;
  std::vector<std::unique_ptr<gpu::Event>> lane_ends_;
  std::unique_ptr<gpu::Event> end_;
};

}  // namespace kvferry::bench
