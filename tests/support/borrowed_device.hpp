// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/gpu/device.hpp"

#include <memory>
#include <optional>
#include <string>

namespace kvferry::transfer {

/// A device to give away, whose real one stays with the test: what is alive of it can be counted
/// when its user is gone.
class BorrowedDevice : public gpu::Device {
 public:
  explicit BorrowedDevice(gpu::Device& device) : device_(device) {}

  [[nodiscard]] gpu::BackendKind kind() const override { return device_.kind(); }
  [[nodiscard]] std::string description() const override { return device_.description(); }
  [[nodiscard]] gpu::DeviceTraits traits() const override { return device_.traits(); }
  [[nodiscard]] std::optional<gpu::DeviceLoss> lost() const override { return device_.lost(); }
  [[nodiscard]] gpu::MemoryInfo memory_info() const override { return device_.memory_info(); }
  [[nodiscard]] std::unique_ptr<gpu::Stream> create_stream(gpu::StreamPriority priority) override {
    return device_.create_stream(priority);
  }
  [[nodiscard]] std::unique_ptr<gpu::Stream> view_stream(std::uintptr_t native_handle) override {
    return device_.view_stream(native_handle);
  }
  [[nodiscard]] std::unique_ptr<gpu::Event> create_event() override {
    return device_.create_event();
  }
  void prepare(const gpu::BlockGeometry& geometry) override { device_.prepare(geometry); }
  void forget(const gpu::BlockGeometry& geometry) override { device_.forget(geometry); }
  [[nodiscard]] std::unique_ptr<gpu::DeviceBuffer> allocate(std::uint64_t bytes) override {
    return device_.allocate(bytes);
  }
  [[nodiscard]] std::unique_ptr<gpu::HostRegistration> register_host(void* address,
                                                                     std::uint64_t bytes) override {
    return device_.register_host(address, bytes);
  }

 protected:
  gpu::Device& device_;
};

/// The engine's compute stream has a thread of its own, so that work waits in it, which the host
/// device's views do not do.
class ThreadedComputeDevice final : public BorrowedDevice {
 public:
  using BorrowedDevice::BorrowedDevice;
  [[nodiscard]] std::unique_ptr<gpu::Stream> view_stream(std::uintptr_t /*handle*/) override {
    return device_.create_stream();
  }
};

}  // namespace kvferry::transfer
