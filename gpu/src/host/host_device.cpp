// SPDX-License-Identifier: Apache-2.0
#include "kvferry/base/check.hpp"
#include "kvferry/base/graveyard.hpp"
#include "kvferry/base/test_hooks.hpp"
#include "kvferry/gpu/host_link.hpp"

#include "host/host_context.hpp"
#include "host/host_event.hpp"
#include "host/host_memory.hpp"
#include "host/host_stream.hpp"

#include <memory>
#include <optional>
#include <string>
#include <sys/utsname.h>
#include <thread>
#include <utility>
#include <vector>

namespace kvferry::gpu {
namespace {

class HostDevice final : public Device {
 public:
  HostDevice(const HostLinkOptions& link, OperationInterceptor interceptor)
      : context_(std::make_unique<HostContext>(link, std::move(interceptor))) {}
  HostDevice(const HostDevice&) = delete;
  HostDevice& operator=(const HostDevice&) = delete;

  ~HostDevice() override {
    // What was left behind may still run, on threads that use the context.
    if (context_->loss->in_doubt()) {
      bury(std::move(context_));
      return;
    }
    const std::uint64_t num_streams = context_->num_streams;
    KVFERRY_CHECK(num_streams == 0,
                  "a device died before " + std::to_string(num_streams) + " of its streams");
    const std::uint64_t num_events = context_->num_events;
    KVFERRY_CHECK(num_events == 0,
                  "a device died before " + std::to_string(num_events) + " of its events");
    const std::uint64_t num_ranges = context_->registrations.num_ranges();
    KVFERRY_CHECK(num_ranges == 0,
                  "a device died before " + std::to_string(num_ranges) + " of its registrations");
  }

  [[nodiscard]] BackendKind kind() const override { return BackendKind::kHost; }

  [[nodiscard]] std::string description() const override {
    utsname system{};
    KVFERRY_CHECK(::uname(&system) == 0, "uname cannot fail with a valid address");
    return std::string("host, ") + static_cast<const char*>(system.machine) + ", " +
           std::to_string(std::thread::hardware_concurrency()) + " hardware threads, " +
           static_cast<const char*>(system.sysname) + " " +
           static_cast<const char*>(system.release);
  }

  [[nodiscard]] DeviceTraits traits() const override {
    return {.family = DeviceFamily::kHost,
            .max_batch_runs = kMaxBatchRuns,
            .has_pack_kernels = true,
            // The simulated link knows copies only.
            .sums_at_copy_speed = !context_->link.touches_copies()};
  }
  [[nodiscard]] MemoryInfo memory_info() const override { return host_memory_info(); }
  [[nodiscard]] std::optional<DeviceLoss> lost() const override { return context_->loss->loss(); }

  [[nodiscard]] std::unique_ptr<Stream> create_stream(StreamPriority /*priority*/) override {
    context_->loss->throw_if_lost();
    KVFERRY_PAUSE_POINT("gpu.host.stream");
    if (KVFERRY_FAULT_POINT("gpu.host.stream")) {
      throw DeviceError("cannot create a stream: failed by request of the test");
    }
    return std::make_unique<HostThreadStream>(*context_);
  }

  [[nodiscard]] std::unique_ptr<Stream> view_stream(std::uintptr_t /*native_handle*/) override {
    context_->loss->throw_if_lost();
    KVFERRY_PAUSE_POINT("gpu.host.view_stream");
    if (KVFERRY_FAULT_POINT("gpu.host.view_stream")) {
      throw DeviceError("cannot view a stream: failed by request of the test");
    }
    return std::make_unique<HostInlineStream>(*context_);
  }

  [[nodiscard]] std::unique_ptr<Event> create_event() override {
    context_->loss->throw_if_lost();
    KVFERRY_PAUSE_POINT("gpu.host.event");
    if (KVFERRY_FAULT_POINT("gpu.host.event")) {
      throw DeviceError("cannot create an event: failed by request of the test");
    }
    return std::make_unique<HostEvent>(*context_);
  }

  void prepare(const BlockGeometry& /*geometry*/) override { context_->loss->throw_if_lost(); }
  void forget(const BlockGeometry& /*geometry*/) override {}

  [[nodiscard]] std::unique_ptr<DeviceBuffer> allocate(std::uint64_t bytes) override {
    return std::make_unique<HostDeviceBuffer>(*context_, bytes);
  }

  [[nodiscard]] std::unique_ptr<HostRegistration> register_host(void* address,
                                                                std::uint64_t bytes) override {
    return std::make_unique<HostMemoryRegistration>(
        *context_, reinterpret_cast<std::uintptr_t>(address), bytes);
  }

  [[nodiscard]] std::vector<InjectionEvent> take_injections() {
    if (context_->injector == nullptr) return {};
    return context_->injector->take();
  }

  [[nodiscard]] HostDeviceUsage usage() const {
    return {context_->num_streams, context_->num_events, context_->num_buffers,
            context_->registrations.num_ranges()};
  }

 private:
  std::unique_ptr<HostContext> context_;
};

}  // namespace

HostDeviceUsage host_device_usage(const Device& device) {
  const auto* host = dynamic_cast<const HostDevice*>(&device);
  KVFERRY_CHECK(host != nullptr, "the usage of a device that is not the host back end's");
  return host->usage();
}

std::vector<InjectionEvent> take_injections(Device& device) {
  auto* host = dynamic_cast<HostDevice*>(&device);
  KVFERRY_CHECK(host != nullptr, "the injections of a device that is not the host back end's");
  return host->take_injections();
}

std::unique_ptr<Device> make_host_device(const HostLinkOptions& link,
                                         OperationInterceptor interceptor) {
  return std::make_unique<HostDevice>(link, std::move(interceptor));
}

}  // namespace kvferry::gpu
