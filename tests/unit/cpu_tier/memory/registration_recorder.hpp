// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/error.hpp"
#include "kvferry/gpu/device.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace kvferry::cpu_tier {

/// A device that only registers host memory, and remembers what is registered; its n-th
/// registration fails.
class RegistrationRecorder : public gpu::Device {
 public:
  struct Range {
    std::uintptr_t begin;
    std::uintptr_t end;
  };

  explicit RegistrationRecorder(std::size_t fail_the_nth = 0) : fail_nth(fail_the_nth) {}

  gpu::BackendKind kind() const override { return backend; }
  std::string description() const override { return "registration recorder"; }
  gpu::DeviceTraits traits() const override { return {}; }
  std::optional<gpu::DeviceLoss> lost() const override { return std::nullopt; }
  gpu::MemoryInfo memory_info() const override { return {}; }
  std::unique_ptr<gpu::Stream> create_stream(gpu::StreamPriority /*priority*/) override {
    throw DeviceError("no streams here");
  }
  std::unique_ptr<gpu::Stream> view_stream(std::uintptr_t) override {
    throw DeviceError("no streams here");
  }
  std::unique_ptr<gpu::Event> create_event() override { throw DeviceError("no events here"); }
  void prepare(const gpu::BlockGeometry&) override {}
  void forget(const gpu::BlockGeometry&) override {}
  std::unique_ptr<gpu::DeviceBuffer> allocate(std::uint64_t) override {
    throw ResourceError("no memory here");
  }
  std::unique_ptr<gpu::HostRegistration> register_host(void* address,
                                                       std::uint64_t bytes) override {
    if (ranges.size() + 1 == fail_nth) throw DeviceError("registration refused");
    const auto begin = reinterpret_cast<std::uintptr_t>(address);
    ranges.push_back(Range{begin, begin + bytes});
    return std::make_unique<Registration>(*this, begin);
  }

  gpu::BackendKind backend = gpu::BackendKind::kHost;
  /// Every range ever registered, in order.
  std::vector<Range> ranges;
  std::size_t num_registered = 0;
  /// 0: none.
  std::size_t fail_nth;

 private:
  class Registration : public gpu::HostRegistration {
   public:
    Registration(RegistrationRecorder& recorder, std::uintptr_t address)
        : recorder_(recorder), address_(address) {
      ++recorder_.num_registered;
    }
    ~Registration() override {
      // Unregistered before it is unmapped: the memory can still be read.
      EXPECT_EQ(*reinterpret_cast<const volatile unsigned char*>(address_), 0);
      --recorder_.num_registered;
    }
    std::uintptr_t device_address() const override { return address_; }

   private:
    RegistrationRecorder& recorder_;
    std::uintptr_t address_;
  };
};

}  // namespace kvferry::cpu_tier
