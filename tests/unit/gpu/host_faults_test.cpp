// SPDX-License-Identifier: Apache-2.0
#include "kvferry/base/test_hooks.hpp"
#include "kvferry/gpu/host_link.hpp"

#include <gtest/gtest.h>

#ifdef KVFERRY_TEST_HOOKS

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace kvferry::gpu {
namespace {

constexpr std::chrono::seconds kHang{120};

class HostFaults : public testing::Test {
 protected:
  void SetUp() override { test_hooks::reset(); }
  void TearDown() override { test_hooks::reset(); }

  std::unique_ptr<Device> device_ = make_host_device();
};

TEST_F(HostFaults, FailedAllocationIsAResourceErrorAndTheNextWorks) {
  test_hooks::fail_nth_of("gpu.host.allocate", 1);
  EXPECT_THROW(std::ignore = device_->allocate(64), ResourceError);
  EXPECT_EQ(device_->allocate(64)->size_bytes(), 64U);
}

TEST_F(HostFaults, FailedRegistrationLeavesTheRangeFree) {
  std::vector<std::uint8_t> memory(64);
  test_hooks::fail_nth_of("gpu.host.register", 1);
  EXPECT_THROW(std::ignore = device_->register_host(memory.data(), 64), DeviceError);
  EXPECT_NO_THROW(std::ignore = device_->register_host(memory.data(), 64));
}

TEST_F(HostFaults, FailedEventCreationIsADeviceError) {
  test_hooks::fail_nth_of("gpu.host.event", 1);
  EXPECT_THROW(std::ignore = device_->create_event(), DeviceError);
  EXPECT_NE(device_->create_event(), nullptr);
}

TEST_F(HostFaults, FailedRecordLeavesTheEventAsItWas) {
  const auto stream = device_->create_stream();
  const auto event = device_->create_event();
  test_hooks::fail_nth_of("gpu.host.submit", 1);
  EXPECT_THROW(stream->record(*event), DeviceError);
  EXPECT_EQ(event->query(), EventState::kUnrecorded);
  stream->record(*event);
  ASSERT_EQ(event->wait(kHang), EventState::kDone);
  test_hooks::fail_nth_of("gpu.host.submit", 1);
  EXPECT_THROW(stream->record(*event), DeviceError);
  EXPECT_EQ(event->query(), EventState::kDone);
}

TEST_F(HostFaults, EveryKindOfSubmissionCanFailAndThenNothingOfItRuns) {
  std::vector<std::uint8_t> host(64, 1);
  const auto registration = device_->register_host(host.data(), 64);
  const auto buffer = device_->allocate(64);
  const auto geometry = make_block_geometry({{buffer->address(), 8, 8}}, 4);
  const std::vector<BlockId> blocks = {BlockId(1)};
  const CopyRun load{buffer->address(), registration->device_address(), 64};
  for (const auto& stream : {device_->create_stream(), device_->view_stream(0)}) {
    const auto event = device_->create_event();
    stream->fill(buffer->address(), 3, 64);
    stream->record(*event);
    const auto expect_refused = [&](auto submission) {
      test_hooks::fail_nth_of("gpu.host.submit", 1);
      EXPECT_THROW(submission(), DeviceError);
    };
    expect_refused([&] { stream->wait(*event); });
    expect_refused([&] { stream->copy(CopyDirection::kHostToDevice, {&load, 1}); });
    expect_refused([&] { stream->gather(geometry, blocks, buffer->address() + 32); });
    expect_refused([&] { stream->scatter(geometry, blocks, buffer->address() + 32); });
    expect_refused([&] { stream->fill(buffer->address(), 4, 64); });
    const CopyRun store{registration->device_address(), buffer->address(), 64};
    stream->copy(CopyDirection::kDeviceToHost, {&store, 1});
    stream->record(*event);
    ASSERT_EQ(event->wait(kHang), EventState::kDone) << event->failure();
    EXPECT_EQ(host, std::vector<std::uint8_t>(64, 3));
  }
}

TEST_F(HostFaults, FailedCopyFailsTheNextRecord) {
  std::vector<std::uint8_t> host(64);
  const auto registration = device_->register_host(host.data(), 64);
  const auto buffer = device_->allocate(64);
  const auto stream = device_->create_stream();
  const auto event = device_->create_event();
  const CopyRun load{buffer->address(), registration->device_address(), 64};
  test_hooks::fail_nth_of("gpu.host.copy", 1);
  stream->copy(CopyDirection::kHostToDevice, {&load, 1});
  stream->record(*event);
  EXPECT_EQ(event->wait(kHang), EventState::kFailed);
  stream->copy(CopyDirection::kHostToDevice, {&load, 1});
  stream->record(*event);
  EXPECT_EQ(event->wait(kHang), EventState::kDone);
}

TEST_F(HostFaults, PausePointsArePassedOnceByEachOperation) {
  const std::vector<std::string> names = {"gpu.host.allocate", "gpu.host.register",
                                          "gpu.host.event", "gpu.host.submit", "gpu.host.copy"};
  std::vector<std::atomic<int>> num_passed(names.size());
  for (std::size_t i = 0; i < names.size(); ++i) {
    test_hooks::on_pause(names[i], [&num_passed, i] { ++num_passed[i]; });
  }
  std::vector<std::uint8_t> host(64);
  const auto registration = device_->register_host(host.data(), 64);
  const auto buffer = device_->allocate(64);
  const auto event = device_->create_event();
  const auto stream = device_->create_stream();
  const CopyRun load{buffer->address(), registration->device_address(), 64};
  stream->copy(CopyDirection::kHostToDevice, {&load, 1});
  ASSERT_TRUE(stream->synchronize(kHang));
  for (std::size_t i = 0; i < names.size(); ++i) EXPECT_EQ(num_passed[i], 1) << names[i];
}

}  // namespace
}  // namespace kvferry::gpu

#endif
