// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/gpu/device.hpp"
#include "kvferry/gpu/driver_options.hpp"

#include "driver/driver_api.hpp"
#include "driver/driver_context.hpp"

#include <memory>
#include <optional>
#include <string>

namespace kvferry::gpu {

/// The device of both vendors' back ends.
class DriverDevice final : public Device {
 public:
  DriverDevice(std::unique_ptr<DriverApi> api, const DriverOptions& options)
      : context_(std::make_unique<DriverContext>(std::move(api), options)) {}
  DriverDevice(const DriverDevice&) = delete;
  DriverDevice& operator=(const DriverDevice&) = delete;
  /// Keeps the context if the device was lost with memory in doubt, for the objects that were kept.
  ~DriverDevice() override;

  [[nodiscard]] BackendKind kind() const override;
  [[nodiscard]] std::string description() const override;
  [[nodiscard]] std::optional<std::string> pci_address() const override {
    return context_->api().traits().pci_address;
  }
  [[nodiscard]] DeviceTraits traits() const override;
  [[nodiscard]] MemoryInfo memory_info() const override;
  [[nodiscard]] std::optional<DeviceLoss> lost() const override { return context_->loss().loss(); }
  [[nodiscard]] std::unique_ptr<Stream> create_stream(StreamPriority priority) override;
  [[nodiscard]] std::unique_ptr<Stream> view_stream(std::uintptr_t native_handle) override;
  [[nodiscard]] std::unique_ptr<Event> create_event() override;
  void prepare(const BlockGeometry& geometry) override;
  void forget(const BlockGeometry& geometry) override;
  [[nodiscard]] std::unique_ptr<DeviceBuffer> allocate(std::uint64_t bytes) override;
  [[nodiscard]] std::unique_ptr<HostRegistration> register_host(void* address,
                                                                std::uint64_t bytes) override;

  [[nodiscard]] DriverContext& context() { return *context_; }

 private:
  std::unique_ptr<DriverContext> context_;
};

}  // namespace kvferry::gpu
