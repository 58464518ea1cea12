// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/gpu/cuda_device.hpp"
#include "kvferry/gpu/hip_device.hpp"

#include "fake_control.hpp"
#include "hang.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <dlfcn.h>
#include <memory>
#include <new>
#include <ostream>
#include <string>
#include <tuple>
#include <vector>

namespace kvferry::gpu {

/// CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED, CUDA_ERROR_ILLEGAL_ADDRESS; hip the same.
inline constexpr int kInvalid = 1;
inline constexpr int kUnsupported = 801;
inline constexpr int kIllegal = 700;

/// One vendor's back end on its stand-in, and the entry points by their names there.
struct Vendor {
  std::string name;
  std::string library;
  std::unique_ptr<Device> (*make)(std::uint32_t, const DriverOptions&);
  BackendAvailability (*availability)(const DriverOptions&);
  std::vector<FoundDevice> (*find)(const DriverOptions&);
  int first_too_old;
  std::string load;
  std::string store;
  std::string batch;
  std::string record;
  std::string query;
  std::string create_event;
  std::string register_host;
  std::string host_pointer;
  std::string launch;
  std::string allocate;
  std::string function;
  std::string init;
};

[[nodiscard]] inline std::vector<Vendor> vendors() {
  return {{"cuda", KVFERRY_FAKE_CUDA, &make_cuda_device, &cuda_availability, &find_cuda_devices,
           12030, "cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync", "cuMemcpyBatchAsync", "cuEventRecord",
           "cuEventQuery", "cuEventCreate", "cuMemHostRegister", "cuMemHostGetDevicePointer",
           "cuLaunchKernel", "cuMemAlloc", "cuModuleGetFunction", "cuInit"},
          {"hip", KVFERRY_FAKE_HIP, &make_hip_device, &hip_availability, &find_hip_devices,
           50'700'000, "hipMemcpyAsync", "hipMemcpyAsync", "hipMemcpyBatchAsync", "hipEventRecord",
           "hipEventQuery", "hipEventCreateWithFlags", "hipHostRegister", "hipHostGetDevicePointer",
           "hipModuleLaunchKernel", "hipMalloc", "hipModuleGetFunction", "hipInit"}};
}

inline void PrintTo(const Vendor& vendor, std::ostream* out) { *out << vendor.name; }

/// Page-aligned registered memory.
class PinnedMemory {
 public:
  PinnedMemory(Device& device, std::size_t bytes)
      : bytes_(bytes),
        memory_(static_cast<std::uint8_t*>(::operator new(bytes, kAlignment))),
        registration_(device.register_host(memory_.get(), bytes)) {
    std::fill_n(memory_.get(), bytes, std::uint8_t{0});
  }
  [[nodiscard]] std::uintptr_t address() const { return registration_->device_address(); }
  [[nodiscard]] std::uint8_t* data() { return memory_.get(); }
  [[nodiscard]] bool all(std::uint8_t value) const {
    return std::all_of(memory_.get(), memory_.get() + bytes_,
                       [&](std::uint8_t byte) { return byte == value; });
  }

 private:
  static constexpr std::align_val_t kAlignment{4096};
  struct Free {
    void operator()(std::uint8_t* bytes) const { ::operator delete(bytes, kAlignment); }
  };
  std::size_t bytes_;
  std::unique_ptr<std::uint8_t, Free> memory_;
  std::unique_ptr<HostRegistration> registration_;
};

/// Both vendors' back ends on their stand-ins, which start afresh for each test.
class DriverTest : public testing::TestWithParam<Vendor> {
 protected:
  void SetUp() override {
    void* const library = ::dlopen(vendor().library.c_str(), RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(library, nullptr);
    using Get = fakes::FakeControl* (*)();
    control_ = reinterpret_cast<Get>(::dlsym(library, fakes::kFakeControlSymbol))();
    control_->reset();
  }
  void TearDown() override {
    device_.reset();
    if (control_ != nullptr) control_->reset();
  }

  [[nodiscard]] const Vendor& vendor() const { return GetParam(); }
  [[nodiscard]] fakes::FakeControl& control() { return *control_; }
  [[nodiscard]] Device& device() {
    if (device_ == nullptr) open();
    return *device_;
  }
  void open() {
    device_.reset();
    device_ = vendor().make(0, {.library = vendor().library, .kernel_image = fakes::kFakeImage});
  }
  void use(std::unique_ptr<Device> made) { device_ = std::move(made); }
  /// What the factory says when it cannot make a device.
  [[nodiscard]] std::string refusal(const std::string& library, std::uint32_t ordinal = 0) {
    try {
      std::ignore = vendor().make(ordinal, {.library = library});
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }
  /// Four neighbouring stores of a quarter each.
  static std::vector<CopyRun> quarters(const PinnedMemory& host, const DeviceBuffer& buffer) {
    const std::uint64_t part = buffer.size_bytes() / 4;
    std::vector<CopyRun> runs;
    for (std::uint64_t i = 0; i < 4; ++i) {
      runs.push_back({host.address() + i * part, buffer.address() + i * part, part});
    }
    return runs;
  }
  static std::vector<CopyRun> reversed(std::vector<CopyRun> runs) {
    for (CopyRun& run : runs) std::swap(run.source, run.destination);
    return runs;
  }

 private:
  fakes::FakeControl* control_ = nullptr;
  std::unique_ptr<Device> device_;
};

}  // namespace kvferry::gpu

#define KVFERRY_INSTANTIATE_VENDORS(suite)                                                      \
  INSTANTIATE_TEST_SUITE_P(StandIns, suite, testing::ValuesIn(::kvferry::gpu::vendors()),       \
                           [](const testing::TestParamInfo<::kvferry::gpu::Vendor>& instance) { \
                             return instance.param.name;                                        \
                           })
