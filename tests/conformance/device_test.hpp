// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device_factory.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <ostream>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvferry::gpu {

/// After this long a test has hung.
inline constexpr std::chrono::seconds kHang{120};
/// Long enough for a wrong implementation to be caught in most runs, and never too short for a
/// right one.
inline constexpr std::chrono::milliseconds kMoment{20};

/// Bytes that differ from their neighbours and from those of another `seed`.
[[nodiscard]] inline std::vector<std::uint8_t> pattern(std::size_t size, std::uint8_t seed) {
  std::vector<std::uint8_t> bytes(size);
  std::uint32_t state = 0x9e3779b9U * (seed + 1U);
  for (std::uint8_t& byte : bytes) {
    state = state * 1664525U + 1013904223U;
    byte = static_cast<std::uint8_t>(state >> 24);
  }
  return bytes;
}

/// Registered host memory, page-aligned, zeroed.
class HostMemory {
 public:
  HostMemory(Device& device, std::size_t size)
      : size_(size),
        bytes_(static_cast<std::uint8_t*>(::operator new(size, kAlignment))),
        registration_(device.register_host(bytes_.get(), size)) {
    std::fill_n(bytes_.get(), size, std::uint8_t{0});
  }

  /// As the device names it.
  [[nodiscard]] std::uintptr_t address() const { return registration_->device_address(); }
  [[nodiscard]] std::span<std::uint8_t> bytes() { return {bytes_.get(), size_}; }
  [[nodiscard]] std::vector<std::uint8_t> contents() const {
    return {bytes_.get(), bytes_.get() + size_};
  }

 private:
  static constexpr std::align_val_t kAlignment{4096};
  struct Free {
    void operator()(std::uint8_t* bytes) const { ::operator delete(bytes, kAlignment); }
  };

  std::size_t size_;
  std::unique_ptr<std::uint8_t, Free> bytes_;
  std::unique_ptr<HostRegistration> registration_;
};

/// Opens the back end of the test's parameter; skips the test if there is none, and fails it if
/// KVFERRY_REQUIRE_BACKEND names it.
class DeviceTest : public testing::TestWithParam<Backend> {
 protected:
  void SetUp() override {
    const Backend& backend = GetParam();
    if (backend.open != nullptr) opened_ = backend.open();
    if (opened_ != nullptr) return;
    const char* required = std::getenv("KVFERRY_REQUIRE_BACKEND");  // NOLINT(concurrency-mt-unsafe)
    if (required != nullptr && required == backend.name) {
      FAIL() << "KVFERRY_REQUIRE_BACKEND asks for " << backend.name << ": " << backend.why_absent;
    }
    GTEST_SKIP() << backend.name << ": " << backend.why_absent;
  }

  [[nodiscard]] DeviceUnderTest& under_test() { return *opened_; }
  [[nodiscard]] Device& device() { return opened_->device(); }

  void upload(std::span<const std::uint8_t> bytes, std::uintptr_t address) {
    HostMemory host(device(), bytes.size());
    std::copy(bytes.begin(), bytes.end(), host.bytes().begin());
    copy_now(CopyDirection::kHostToDevice, {address, host.address(), bytes.size()});
  }

  [[nodiscard]] std::vector<std::uint8_t> download(std::uintptr_t address, std::size_t size) {
    HostMemory host(device(), size);
    copy_now(CopyDirection::kDeviceToHost, {host.address(), address, size});
    return host.contents();
  }

 private:
  void copy_now(CopyDirection direction, CopyRun run) {
    const auto stream = device().create_stream();
    const auto copied = device().create_event();
    stream->copy(direction, {&run, 1});
    stream->record(*copied);
    ASSERT_EQ(copied->wait(kHang), EventState::kDone) << copied->failure();
  }

  std::unique_ptr<DeviceUnderTest> opened_;
};

[[nodiscard]] inline std::string backend_name(const testing::TestParamInfo<Backend>& info) {
  return info.param.name;
}

inline void PrintTo(const Backend& backend, std::ostream* out) { *out << backend.name; }

inline void PrintTo(EventState state, std::ostream* out) {
  switch (state) {
    case EventState::kUnrecorded:
      *out << "unrecorded";
      break;
    case EventState::kPending:
      *out << "pending";
      break;
    case EventState::kDone:
      *out << "done";
      break;
    case EventState::kFailed:
      *out << "failed";
      break;
  }
}

}  // namespace kvferry::gpu

/// Runs the suite for every back end.
#define KVFERRY_INSTANTIATE_CONFORMANCE(suite)                                             \
  INSTANTIATE_TEST_SUITE_P(Backends, suite, testing::ValuesIn(::kvferry::gpu::backends()), \
                           ::kvferry::gpu::backend_name)
