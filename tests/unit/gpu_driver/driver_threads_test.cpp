// SPDX-License-Identifier: Apache-2.0
#include "driver_test.hpp"

namespace kvferry::gpu {
namespace {

class DriverThreads : public DriverTest {
 protected:
  /// Makes another device (HIP) current on this thread.
  void set_device(int ordinal) {
    using SetDevice = int (*)(int);
    void* const library = ::dlopen(vendor().library.c_str(), RTLD_NOW | RTLD_NOLOAD);
    if (auto* const set = reinterpret_cast<SetDevice>(::dlsym(library, "hipSetDevice"))) {
      ASSERT_EQ(set(ordinal), 0);
    }
  }
};
KVFERRY_INSTANTIATE_VENDORS(DriverThreads);

TEST_P(DriverThreads, EngineThreadIsLeftAsItWasFound) {
  set_device(1);
  const int before = control().thread_context();
  {
    const auto buffer = device().allocate(64);
    PinnedMemory host(device(), 64);
    const auto stream = device().create_stream();
    const auto event = device().create_event();
    stream->fill(buffer->address(), 1, 64);
    stream->copy(CopyDirection::kDeviceToHost, quarters(host, *buffer));
    stream->record(*event);
    EXPECT_EQ(event->wait(kHang), EventState::kDone);
    control().fail_nth(vendor().record, 1, kInvalid);
    EXPECT_THROW(stream->record(*event), DeviceError);
    EXPECT_EQ(control().thread_context(), before);
    EXPECT_EQ(control().thread_capture_mode(), 0);
  }
  EXPECT_EQ(control().thread_context(), before);
  EXPECT_EQ(control().thread_capture_mode(), 0);
  set_device(0);
}

TEST_P(DriverThreads, ViewRefusesWorkWhileTheEngineCaptures) {
  const auto buffer = device().allocate(64);
  const auto own = device().create_stream();
  const auto view = device().view_stream(1);
  const auto event = device().create_event();
  control().set_capturing(1);
  EXPECT_THROW(view->fill(buffer->address(), 1, 32), DeviceError);
  EXPECT_THROW(view->record(*event), DeviceError);
  EXPECT_EQ(event->query(), EventState::kUnrecorded);
  EXPECT_NO_THROW(own->fill(buffer->address() + 32, 1, 32)) << "our streams go on";
  control().set_capturing(0);
  EXPECT_NO_THROW(view->fill(buffer->address(), 1, 32));
}

TEST_P(DriverThreads, WhatCannotBeProvenToHaveEndedIsNot) {
  const auto buffer = device().allocate(64);
  const auto view = device().view_stream(1);
  view->fill(buffer->address(), 1, 64);
  control().set_capturing(1);
  EXPECT_FALSE(view->synchronize(std::chrono::milliseconds(10)));
  control().set_capturing(0);
  EXPECT_TRUE(view->synchronize(kHang));
}

TEST_P(DriverThreads, RejectsAViewOfAStreamThatIsNotTheDevices) {
  EXPECT_THROW(std::ignore = device().view_stream(0xdead0), DeviceError);
}

TEST_P(DriverThreads, NothingIsLeftWhenTheDeviceIsGone) {
  const std::uint64_t num_before = control().num_alive();
  {
    const auto buffer = device().allocate(64);
    PinnedMemory host(device(), 64);
    const auto stream = device().create_stream();
    const auto event = device().create_event();
    const auto geometry = make_block_geometry({{buffer->address(), 16, 16}}, 2);
    const std::vector<BlockId> blocks = {BlockId(0)};
    stream->gather(geometry, blocks, buffer->address() + 32);
    stream->copy(CopyDirection::kDeviceToHost, quarters(host, *buffer));
    for (int i = 0; i < 100; ++i) stream->record(*event);
    ASSERT_EQ(event->wait(kHang), EventState::kDone);
  }
  TearDown();
  EXPECT_EQ(control().num_alive(), num_before);
}

TEST_P(DriverThreads, EventsThatAreDoneAreUsedAgain) {
  const auto stream = device().create_stream();
  const auto event = device().create_event();
  for (int i = 0; i < 100; ++i) {
    stream->record(*event);
    ASSERT_EQ(event->wait(kHang), EventState::kDone);
  }
  EXPECT_LE(control().num_calls(vendor().create_event), 3U);
}

}  // namespace
}  // namespace kvferry::gpu
