// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device_factory.hpp"
#include "hang.hpp"

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

/// A stream that is held until release() or the end of the scope, whichever way the test leaves it.
/// What a driver waits for the device for (a kernel's first use, freeing, registering) comes
/// before.
class Hold {
 public:
  static constexpr std::chrono::seconds kLimit{20};
  Hold(DeviceUnderTest& under_test, Stream& stream, std::chrono::milliseconds limit = kLimit)
      : under_test_(under_test) {
    under_test_.hold(stream, limit);
  }
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;
  ~Hold() { release(); }
  void release() {
    if (released_) return;
    released_ = true;
    EXPECT_EQ(under_test_.release(), 0U)
        << "the stream was not held to the end: a call of the test waited for the device";
  }

 private:
  DeviceUnderTest& under_test_;
  bool released_ = false;
};

struct FreeHostPages {
  static constexpr std::align_val_t kAlignment{4096};
  void operator()(std::uint8_t* bytes) const { ::operator delete(bytes, kAlignment); }
};
using HostPages = std::unique_ptr<std::uint8_t, FreeHostPages>;

/// Page-aligned and zeroed; drivers register pages.
[[nodiscard]] inline HostPages make_host_pages(std::size_t size) {
  HostPages pages(static_cast<std::uint8_t*>(::operator new(size, FreeHostPages::kAlignment)));
  std::fill_n(pages.get(), size, std::uint8_t{0});
  return pages;
}

/// Registered host memory, page-aligned, zeroed.
class HostMemory {
 public:
  HostMemory(Device& device, std::size_t size)
      : size_(size),
        bytes_(make_host_pages(size)),
        registration_(device.register_host(bytes_.get(), size)) {}

  /// As the device names it.
  [[nodiscard]] std::uintptr_t address() const { return registration_->device_address(); }
  [[nodiscard]] std::span<std::uint8_t> bytes() { return {bytes_.get(), size_}; }
  [[nodiscard]] std::vector<std::uint8_t> contents() const {
    return {bytes_.get(), bytes_.get() + size_};
  }

 private:
  std::size_t size_;
  HostPages bytes_;
  std::unique_ptr<HostRegistration> registration_;
};

/// Opens the back end of the test's parameter. Where there is none, the test is skipped, or fails
/// if KVFERRY_REQUIRE_BACKEND names it; a name that no back end has fails every test.
class DeviceTest : public testing::TestWithParam<Backend> {
 protected:
  void SetUp() override {
    const char* required = std::getenv("KVFERRY_REQUIRE_BACKEND");  // NOLINT(concurrency-mt-unsafe)
    const Absence absence = absence_of(GetParam(), required == nullptr ? "" : required);
    if (absence.is_failure) FAIL() << absence.text;
    if (!absence.text.empty()) GTEST_SKIP() << absence.text;
    opened_ = GetParam().open();
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
