// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/gpu/device.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace kvferry::bench {

/// Checks a few pages of a buffer of floats on the device.
class CoRunSample {
 public:
  /// `device` outlives it. Throws DeviceError.
  explicit CoRunSample(gpu::Device& device);
  /// Whether the first, the middle and the last floats are `expected`, up to the rounding of one
  /// fused operation. The device must be idle. Throws DeviceError.
  [[nodiscard]] bool all_are(std::uintptr_t address, std::uint64_t num_floats, float expected);
  /// The float whose four bytes all are `byte`.
  [[nodiscard]] static float of_byte(std::uint8_t byte);

 private:
  static constexpr std::size_t kPageBytes = 4096;
  struct alignas(kPageBytes) Page {
    std::array<float, kPageBytes / sizeof(float)> floats;
  };

  const std::unique_ptr<Page> page_;
  const std::unique_ptr<gpu::HostRegistration> registration_;
  const std::unique_ptr<gpu::Stream> stream_;
  const std::unique_ptr<gpu::Event> copied_;
};

}  // namespace kvferry::bench
