// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/gpu/device.hpp"

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace kvferry::gpu {

/// A device and what the suite asks of a back end beyond the Device interface.
class DeviceUnderTest {
 public:
  virtual ~DeviceUnderTest() = default;
  [[nodiscard]] virtual Device& device() = 0;
  /// Handle of a stream of the engine, for view_stream().
  [[nodiscard]] virtual std::uintptr_t engine_stream() = 0;
  /// Submits to `stream` an operation that runs until release(), and for `limit` at most, so that a
  /// call that waits for the device ends; returns once it runs. Tests use Hold.
  virtual void hold(Stream& stream, std::chrono::milliseconds limit) = 0;
  /// Lets all held operations end; how many have ended by themselves.
  virtual std::uint64_t release() = 0;
  /// Submits to `stream` an operation that fails when it runs.
  virtual void submit_failing(Stream& stream) = 0;
};

/// One back end that the suite is instantiated for.
struct Backend {
  std::string name;
  BackendKind kind = BackendKind::kHost;
  /// Null: it cannot be had here, for the reason in `why_absent`.
  std::unique_ptr<DeviceUnderTest> (*open)() = nullptr;
  std::string why_absent;
};

[[nodiscard]] std::unique_ptr<DeviceUnderTest> open_host_device();
/// `cuda` and `hip`, on device 0 of the machine if it has one, and the same back ends on stand-in
/// drivers (tests/fakes), which every machine has.
[[nodiscard]] std::vector<Backend> driver_backends();

/// Why the suite does not run on a back end.
struct Absence {
  bool is_failure = false;
  std::string text;  ///< Empty: it runs.
};
/// `required` is what KVFERRY_REQUIRE_BACKEND says; empty: nothing.
[[nodiscard]] Absence absence_of(const Backend& backend, const std::string& required);

/// All back ends, present or not, in a fixed order.
[[nodiscard]] inline std::vector<Backend> backends() {
  std::vector<Backend> all = {{"host", BackendKind::kHost, &open_host_device, ""}};
  for (Backend& backend : driver_backends()) all.push_back(std::move(backend));
  return all;
}

}  // namespace kvferry::gpu
