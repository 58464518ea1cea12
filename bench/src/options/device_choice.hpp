// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/error.hpp"
#include "kvferry/gpu/device.hpp"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace kvferry::bench {

/// The device that was asked for cannot be had; the message is one line that says what to do.
class NoSuchDevice : public Error {
 public:
  using Error::Error;
};

/// Which device, and on what driver.
struct DeviceChoice {
  gpu::BackendKind kind = gpu::BackendKind::kHost;
  std::uint32_t ordinal = 0;
  /// Which devices: kAll begins at ordinal 0.
  enum class Range : std::uint8_t { kOne, kAll } range = Range::kOne;
  /// Library to open instead of the vendor's; empty: the vendor's.
  std::string driver_library = {};
  /// File with a code object to load instead of the build's; empty: the build's. A stand-in driver
  /// takes any file, and needs none.
  std::string kernel_image_file = {};
  /// Whether the back end runs on a stand-in of the driver (tests/fakes): its paths are the real
  /// ones, its figures mean nothing.
  enum class Driver : std::uint8_t { kReal, kStandIn } driver = Driver::kReal;

  /// "host", "cuda", "hip", "cuda_stand_in", "hip_stand_in".
  [[nodiscard]] std::string name() const;
};

/// "host", "cuda", "cuda:1", "hip:0", "cuda:all", "cuda_stand_in". Throws ConfigError that lists
/// what is known.
[[nodiscard]] DeviceChoice device_choice_from(std::string_view text);

/// The library of a stand-in: what the environment names (KVFERRY_FAKE_CUDA, KVFERRY_FAKE_HIP),
/// else
/// ../tests/fakes/libfake_cuda.so seen from `program`, where the build puts it, else next to it.
[[nodiscard]] std::string stand_in_library(gpu::BackendKind kind,
                                           const std::filesystem::path& program);

/// A device, and the code object that has to outlive it.
class OpenDevice {
 public:
  /// Throws NoSuchDevice.
  explicit OpenDevice(const DeviceChoice& choice);
  [[nodiscard]] gpu::Device& device() { return *device_; }

 private:
  std::vector<std::byte> kernel_image_;
  std::unique_ptr<gpu::Device> device_;
};

}  // namespace kvferry::bench
