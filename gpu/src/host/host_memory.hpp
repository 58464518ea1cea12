// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/gpu/device.hpp"

#include "host/host_context.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

namespace kvferry::gpu {

/// Memory of the machine: `free_bytes` is what the kernel says can be had without swapping.
[[nodiscard]] MemoryInfo host_memory_info();

/// "Device" memory of the host back end: ordinary memory, page-aligned, from the C++ heap so that
/// the sanitizers watch its borders.
class HostDeviceBuffer final : public DeviceBuffer {
 public:
  /// Throws ResourceError.
  HostDeviceBuffer(HostContext& context, std::uint64_t bytes);
  HostDeviceBuffer(const HostDeviceBuffer&) = delete;
  HostDeviceBuffer& operator=(const HostDeviceBuffer&) = delete;
  ~HostDeviceBuffer() override;
  [[nodiscard]] std::uintptr_t address() const override;
  [[nodiscard]] std::uint64_t size_bytes() const override { return bytes_; }

 private:
  static constexpr std::align_val_t kAlignment{4096};
  struct Free {
    void operator()(std::byte* memory) const { ::operator delete(memory, kAlignment); }
  };

  HostContext& context_;
  std::uint64_t bytes_;
  std::unique_ptr<std::byte, Free> memory_;
};

/// Bookkeeping only: the host back end reads and writes any memory.
class HostMemoryRegistration final : public HostRegistration {
 public:
  /// Throws DeviceError.
  HostMemoryRegistration(HostContext& context, std::uintptr_t address, std::uint64_t bytes);
  HostMemoryRegistration(const HostMemoryRegistration&) = delete;
  HostMemoryRegistration& operator=(const HostMemoryRegistration&) = delete;
  ~HostMemoryRegistration() override;
  [[nodiscard]] std::uintptr_t device_address() const override { return address_; }

 private:
  HostContext& context_;
  std::uintptr_t address_;
  std::uint64_t bytes_;
};

}  // namespace kvferry::gpu
