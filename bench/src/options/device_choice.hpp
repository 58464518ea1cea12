// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/error.hpp"
#include "kvferry/gpu/device.hpp"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvferry::bench {

/// The requested device is not available. The message is one line that says what to do.
class NoSuchDevice : public Error {
 public:
  using Error::Error;
};

/// The chosen device, and its driver.
struct DeviceChoice {
  gpu::BackendKind kind = gpu::BackendKind::kHost;
  std::uint32_t ordinal = 0;
  /// One device or all; kAll begins at ordinal 0.
  enum class Range : std::uint8_t { kOne, kAll } range = Range::kOne;
  /// Driver library to open; empty: the vendor's.
  std::string driver_library = {};
  /// File with the code object to load; empty: the build's. A stand-in driver accepts any file, and
  /// needs none.
  std::string kernel_image_file = {};
  /// Whether the back end runs on a stand-in driver (tests/fakes). Its paths are the real ones, but
  /// its figures mean nothing.
  enum class Driver : std::uint8_t { kReal, kStandIn } driver = Driver::kReal;

  /// "host", "cuda", "hip", "cuda_stand_in", "hip_stand_in".
  [[nodiscard]] std::string name() const;
};

/// Reads "host", "cuda", "cuda:1", "hip:0", "cuda:all", "cuda_stand_in". For other texts it throws
/// a ConfigError that lists the known devices.
[[nodiscard]] DeviceChoice device_choice_from(std::string_view text);

/// "cuda" or "hip": the first of these back ends that has a device here.
[[nodiscard]] std::optional<std::string> first_gpu();

/// The library of a stand-in: the one that the environment names (KVFERRY_FAKE_CUDA,
/// KVFERRY_FAKE_HIP), else ../tests/fakes/libfake_cuda.so relative to `program`, where the build
/// puts it, else the one next to `program`.
[[nodiscard]] std::string stand_in_library(gpu::BackendKind kind,
                                           const std::filesystem::path& program);

/// A device, with the code object that must outlive it.
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
