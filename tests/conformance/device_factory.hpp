// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/gpu/device.hpp"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace kvferry::gpu {

/// A device and what the suite asks of a back end beyond the Device interface.
class DeviceUnderTest {
 public:
  virtual ~DeviceUnderTest() = default;
  [[nodiscard]] virtual Device& device() = 0;
  /// Handle of a stream of the engine, for view_stream().
  [[nodiscard]] virtual std::uintptr_t engine_stream() = 0;
  /// Submits to `stream` an operation that runs until release(); returns once it runs.
  virtual void hold(Stream& stream) = 0;
  /// Lets all held operations end.
  virtual void release() = 0;
  /// Submits to `stream` an operation that fails when it runs.
  virtual void submit_failing(Stream& stream) = 0;
};

/// One back end that the suite is instantiated for.
struct Backend {
  std::string name;
  /// Null: it cannot be had here, for the reason in `why_absent`.
  std::unique_ptr<DeviceUnderTest> (*open)() = nullptr;
  std::string why_absent;
};

[[nodiscard]] std::unique_ptr<DeviceUnderTest> open_host_device();

/// All back ends, present or not, in a fixed order.
[[nodiscard]] inline std::vector<Backend> backends() {
  return {{"host", &open_host_device, ""},
          {"cuda", nullptr, "back end not built"},
          {"hip", nullptr, "back end not built"}};
}

}  // namespace kvferry::gpu
