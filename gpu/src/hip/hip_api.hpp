// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "driver/driver_api.hpp"
#include "hip/hip_library.hpp"

#include <memory>
#include <string>

namespace kvferry::gpu {

/// One HIP device on its primary context, which is the only one. Its kernels use no more dynamic
/// shared memory than the default, so function() requests no permission.
class HipApi final : public DriverApi {
 public:
  /// Throws ConfigError or DeviceError, as make_hip_device() says.
  HipApi(HipLibrary library, int ordinal);
  HipApi(const HipApi&) = delete;
  HipApi& operator=(const HipApi&) = delete;

  [[nodiscard]] const DriverTraits& traits() const override { return traits_; }
  [[nodiscard]] std::string describe(int code) const override;
  DriverValue<ThreadState> enter() override;
  void leave(const ThreadState& before) override;
  DriverValue<StreamPriorities> stream_priorities() override;
  DriverValue<StreamHandle> create_stream(int priority) override;
  DriverResult destroy_stream(StreamHandle stream) override;
  DriverResult query_stream(StreamHandle stream) override;
  DriverValue<bool> is_capturing(StreamHandle stream) override;
  DriverValue<bool> is_ours(StreamHandle stream) override;
  DriverValue<EventHandle> create_event() override;
  DriverResult destroy_event(EventHandle event) override;
  DriverResult record_event(EventHandle event, StreamHandle stream) override;
  DriverResult query_event(EventHandle event) override;
  DriverResult wait_event(StreamHandle stream, EventHandle event) override;
  DriverValue<std::chrono::nanoseconds> elapsed(EventHandle from, EventHandle to) override;
  DriverResult copy(CopyDirection direction, const CopyRun& run, StreamHandle stream) override;
  DriverResult copy_batch(CopyDirection direction, std::span<const CopyRun> runs,
                          StreamHandle stream) override;
  DriverResult fill(std::uintptr_t address, std::uint8_t value, std::uint64_t bytes,
                    StreamHandle stream) override;
  DriverResult register_host(std::uintptr_t address, std::uint64_t bytes) override;
  DriverResult unregister_host(std::uintptr_t address) override;
  DriverValue<std::uintptr_t> host_device_address(std::uintptr_t address) override;
  DriverValue<std::uintptr_t> allocate(std::uint64_t bytes) override;
  DriverResult free(std::uintptr_t address) override;
  DriverValue<MemoryInfo> memory_info() override;
  [[nodiscard]] std::vector<std::byte> compile(std::string_view source) override;
  DriverValue<ModuleHandle> load_module(std::span<const std::byte> image) override;
  DriverResult unload_module(ModuleHandle module) override;
  DriverValue<FunctionHandle> function(ModuleHandle module, const char* name,
                                       std::uint32_t shared_bytes) override;
  DriverResult launch(FunctionHandle function, const LaunchShape& shape, void* argument,
                      StreamHandle stream) override;

 private:
  static void* pointer(std::uintptr_t address) { return reinterpret_cast<void*>(address); }
  /// Converts one of our handles to the driver's form.
  template <class T>
  static hip_abi::Handle raw(T handle) {
    return reinterpret_cast<hip_abi::Handle>(handle);  // NOLINT(performance-no-int-to-ptr)
  }
  void read_traits();
  [[nodiscard]] int attribute(int which) const;
  /// Throws DeviceError unless the call succeeded.
  void require(hip_abi::Result code, const std::string& what) const;

  const HipLibrary hip_;
  hip_abi::Device device_;
  DriverTraits traits_;
};

}  // namespace kvferry::gpu
