// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/gpu/device.hpp"

#include <cstdint>

namespace kvferry::gpu {

class DriverContext;

/// Memory of the device. To free it, the drivers wait for the whole device.
class DriverBuffer final : public DeviceBuffer {
 public:
  /// Throws ResourceError, or DeviceError if the device is lost.
  DriverBuffer(DriverContext& context, std::uint64_t bytes);
  DriverBuffer(const DriverBuffer&) = delete;
  DriverBuffer& operator=(const DriverBuffer&) = delete;
  ~DriverBuffer() override;
  [[nodiscard]] std::uintptr_t address() const override { return address_; }
  [[nodiscard]] std::uint64_t size_bytes() const override { return bytes_; }

 private:
  DriverContext& context_;
  std::uint64_t bytes_;
  std::uintptr_t address_ = 0;
};

/// Host memory that the driver pinned. The drivers pin whole pages, so two registrations share
/// none.
class DriverRegistration final : public HostRegistration {
 public:
  /// Drivers fail for a piece of this size or more, and the context is lost: vllm#51081.
  static constexpr std::uint64_t kTooLargeBytes = std::uint64_t{512} << 30U;

  /// Throws DeviceError.
  DriverRegistration(DriverContext& context, std::uintptr_t address, std::uint64_t bytes);
  DriverRegistration(const DriverRegistration&) = delete;
  DriverRegistration& operator=(const DriverRegistration&) = delete;
  ~DriverRegistration() override;
  [[nodiscard]] std::uintptr_t device_address() const override { return device_address_; }

 private:
  DriverContext& context_;
  std::uintptr_t address_;
  std::uintptr_t device_address_ = 0;
};

}  // namespace kvferry::gpu
