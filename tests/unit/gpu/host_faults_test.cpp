// SPDX-License-Identifier: Apache-2.0
#include "kvferry/base/test_hooks.hpp"
#include "kvferry/gpu/host_link.hpp"

#include "hang.hpp"

#include <gtest/gtest.h>

#ifdef KVFERRY_TEST_HOOKS

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace kvferry::gpu {
namespace {

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

TEST_F(HostFaults, FailedStreamIsADeviceErrorAndTheNextWorks) {
  test_hooks::fail_nth_of("gpu.host.stream", 1);
  EXPECT_THROW(std::ignore = device_->create_stream(), DeviceError);
  EXPECT_NE(device_->create_stream(), nullptr);
  test_hooks::fail_nth_of("gpu.host.view_stream", 1);
  EXPECT_THROW(std::ignore = device_->view_stream(0), DeviceError);
  EXPECT_NE(device_->view_stream(0), nullptr);
}

TEST_F(HostFaults, DeviceThatCannotTellATimeThrowsAndTheEventStaysDone) {
  const auto stream = device_->create_stream();
  const auto event = device_->create_event();
  stream->record(*event);
  ASSERT_EQ(event->wait(kHang), EventState::kDone);
  test_hooks::fail_nth_of("gpu.host.elapsed", 1);
  EXPECT_THROW(std::ignore = event->elapsed_since(*event), DeviceError);
  EXPECT_EQ(event->query(), EventState::kDone);
  EXPECT_EQ(event->elapsed_since(*event).count(), 0);
}

TEST_F(HostFaults, UsageCountsWhatIsAlive) {
  std::vector<std::uint8_t> memory(64);
  EXPECT_EQ(host_device_usage(*device_), HostDeviceUsage{});
  {
    const auto own = device_->create_stream();
    const auto view = device_->view_stream(0);
    const auto event = device_->create_event();
    const auto buffer = device_->allocate(64);
    const auto registration = device_->register_host(memory.data(), 64);
    EXPECT_EQ(host_device_usage(*device_), (HostDeviceUsage{2, 1, 1, 1}));
  }
  EXPECT_EQ(host_device_usage(*device_), HostDeviceUsage{});
}

TEST_F(HostFaults, EveryFaultLeavesNothingAlive) {
  std::vector<std::uint8_t> memory(64);
  const std::vector<std::pair<std::string, std::function<void()>>> makers = {
      {"gpu.host.stream", [&] { std::ignore = device_->create_stream(); }},
      {"gpu.host.view_stream", [&] { std::ignore = device_->view_stream(0); }},
      {"gpu.host.event", [&] { std::ignore = device_->create_event(); }},
      {"gpu.host.allocate", [&] { std::ignore = device_->allocate(64); }},
      {"gpu.host.register", [&] { std::ignore = device_->register_host(memory.data(), 64); }},
  };
  for (const auto& [point, make] : makers) {
    test_hooks::fail_nth_of(point, 1);
    EXPECT_THROW(make(), Error) << point;
    EXPECT_EQ(host_device_usage(*device_), HostDeviceUsage{}) << point;
  }
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

TEST_F(HostFaults, FailedPackOrFillFailsTheNextRecordOnly) {
  const auto buffer = device_->allocate(64);
  const auto geometry = make_block_geometry({{buffer->address(), 8, 8}}, 4);
  const std::vector<BlockId> blocks = {BlockId(1)};
  const auto stream = device_->create_stream();
  const auto event = device_->create_event();
  const auto expect_failed = [&](const char* point, const std::function<void()>& submit) {
    test_hooks::fail_nth_of(point, 1);
    submit();
    stream->record(*event);
    EXPECT_EQ(event->wait(kHang), EventState::kFailed) << point;
    submit();
    stream->record(*event);
    EXPECT_EQ(event->wait(kHang), EventState::kDone) << point;
  };
  expect_failed("gpu.host.pack", [&] { stream->gather(geometry, blocks, buffer->address() + 32); });
  expect_failed("gpu.host.pack",
                [&] { stream->scatter(geometry, blocks, buffer->address() + 32); });
  expect_failed("gpu.host.fill", [&] { stream->fill(buffer->address(), 1, 64); });
}

TEST_F(HostFaults, PausePointsArePassedOnceByEachOperation) {
  const std::vector<std::string> names = {
      "gpu.host.allocate", "gpu.host.register", "gpu.host.event", "gpu.host.stream",
      "gpu.host.copy",     "gpu.host.pack",     "gpu.host.fill",  "gpu.host.view_stream"};
  constexpr int kNumSubmitted = 4;
  std::atomic<int> num_submitted{0};
  test_hooks::on_pause("gpu.host.submit", [&num_submitted] { ++num_submitted; });
  std::atomic<int> num_elapsed{0};
  test_hooks::on_pause("gpu.host.elapsed", [&num_elapsed] { ++num_elapsed; });
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
  const auto view = device_->view_stream(0);
  const auto geometry = make_block_geometry({{buffer->address(), 8, 8}}, 4);
  const std::vector<BlockId> blocks = {BlockId(1)};
  stream->copy(CopyDirection::kHostToDevice, {&load, 1});
  stream->gather(geometry, blocks, buffer->address() + 32);
  stream->fill(buffer->address(), 1, 64);
  stream->record(*event);
  ASSERT_EQ(event->wait(kHang), EventState::kDone);
  std::ignore = event->elapsed_since(*event);
  for (std::size_t i = 0; i < names.size(); ++i) EXPECT_EQ(num_passed[i], 1) << names[i];
  EXPECT_EQ(num_submitted, kNumSubmitted);
  EXPECT_EQ(num_elapsed, 1);
}

}  // namespace
}  // namespace kvferry::gpu

#endif
