// SPDX-License-Identifier: Apache-2.0
#include "driver_test.hpp"

namespace kvferry::gpu {
namespace {

class DriverFailure : public DriverTest {};
KVFERRY_INSTANTIATE_VENDORS(DriverFailure);

TEST_P(DriverFailure, RefusedSubmissionThrowsRunsNothingAndTheStreamGoesOn) {
  const auto buffer = device().allocate(64);
  PinnedMemory host(device(), 64);
  const auto stream = device().create_stream();
  const auto event = device().create_event();
  stream->fill(buffer->address(), 9, 64);
  control().fail_nth(vendor().store, 1, kInvalid);
  const auto runs = quarters(host, *buffer);
  EXPECT_THROW(stream->copy(CopyDirection::kDeviceToHost, runs, CopyCall::kPerRun), DeviceError);
  stream->record(*event);
  EXPECT_EQ(event->wait(kHang), EventState::kDone) << event->failure();
  EXPECT_TRUE(host.all(0));
  stream->copy(CopyDirection::kDeviceToHost, runs, CopyCall::kPerRun);
  EXPECT_TRUE(stream->synchronize(kHang));
  EXPECT_TRUE(host.all(9));
}

TEST_P(DriverFailure, SubmissionRefusedHalfWayFailsTheNextRecordAndNoOther) {
  const auto buffer = device().allocate(64);
  PinnedMemory host(device(), 64);
  const auto stream = device().create_stream();
  const auto event = device().create_event();
  const auto later = device().create_event();
  control().fail_nth(vendor().store, 3, kInvalid);
  EXPECT_NO_THROW(
      stream->copy(CopyDirection::kDeviceToHost, quarters(host, *buffer), CopyCall::kPerRun));
  EXPECT_TRUE(stream->synchronize(kHang)) << "no failure is taken by this";
  stream->record(*event);
  stream->record(*later);
  EXPECT_EQ(event->wait(kHang), EventState::kFailed);
  EXPECT_NE(event->failure().find("(1)"), std::string::npos) << event->failure();
  EXPECT_EQ(later->wait(kHang), EventState::kDone);
}

TEST_P(DriverFailure, RefusedRecordThrowsAndTheEventStaysAsItWas) {
  const auto stream = device().create_stream();
  const auto event = device().create_event();
  control().fail_nth(vendor().record, 1, kInvalid);
  EXPECT_THROW(stream->record(*event), DeviceError);
  EXPECT_EQ(event->query(), EventState::kUnrecorded);
  stream->record(*event);
  EXPECT_EQ(event->wait(kHang), EventState::kDone);
  control().fail_nth(vendor().record, 1, kInvalid);
  EXPECT_THROW(stream->record(*event), DeviceError);
  EXPECT_EQ(event->query(), EventState::kDone);
}

TEST_P(DriverFailure, RefusedRecordLeavesTheFailureForTheNext) {
  const auto buffer = device().allocate(64);
  PinnedMemory host(device(), 64);
  const auto stream = device().create_stream();
  const auto event = device().create_event();
  control().fail_nth(vendor().store, 2, kInvalid);
  stream->copy(CopyDirection::kDeviceToHost, quarters(host, *buffer), CopyCall::kPerRun);
  control().fail_nth(vendor().record, 1, kInvalid);
  EXPECT_THROW(stream->record(*event), DeviceError);
  stream->record(*event);
  EXPECT_EQ(event->wait(kHang), EventState::kFailed);
}

// What a copy still uses must not be used again.
TEST_P(DriverFailure, AQueryThatFailsDoesNotSayThatTheWorkHasEnded) {
  const auto stream = device().create_stream();
  const auto event = device().create_event();
  control().fail_nth(vendor().query, 1, kInvalid);
  stream->record(*event);
  EXPECT_EQ(event->query(), EventState::kPending);
  EXPECT_EQ(event->wait(kHang), EventState::kDone) << event->failure();
}

TEST_P(DriverFailure, LostDeviceFailsAllLaterWorkAndSaysSo) {
  const auto buffer = device().allocate(64);
  PinnedMemory host(device(), 64);
  const auto stream = device().create_stream();
  const auto before = device().create_event();
  const auto pending = device().create_event();
  const auto after = device().create_event();
  stream->record(*before);
  ASSERT_EQ(before->wait(kHang), EventState::kDone);
  stream->record(*pending);
  control().lose(kIllegal);

  EXPECT_EQ(pending->wait(kHang), EventState::kFailed);
  EXPECT_NE(pending->failure().find("(700)"), std::string::npos) << pending->failure();
  EXPECT_NE(pending->failure().find("lost"), std::string::npos) << pending->failure();
  EXPECT_EQ(before->query(), EventState::kDone) << "what was seen done stays done";

  const auto runs = quarters(host, *buffer);
  EXPECT_THROW(stream->copy(CopyDirection::kDeviceToHost, runs), DeviceError);
  EXPECT_THROW(stream->fill(buffer->address(), 0, 1), DeviceError);
  EXPECT_THROW(stream->wait(*before), DeviceError);
  EXPECT_NO_THROW(stream->record(*after));
  EXPECT_EQ(after->query(), EventState::kFailed);
  EXPECT_EQ(after->failure(), pending->failure());
  EXPECT_FALSE(stream->synchronize(kHang)) << "nothing can prove that its work ended";
  EXPECT_THROW(std::ignore = device().create_stream(), DeviceError);
  EXPECT_THROW(std::ignore = device().create_event(), DeviceError);
  EXPECT_THROW(std::ignore = device().allocate(64), DeviceError);
  EXPECT_THROW(std::ignore = device().memory_info(), DeviceError);
}

TEST_P(DriverFailure, RecordThatFindsTheDeviceLostFailsItsEvent) {
  const auto stream = device().create_stream();
  const auto event = device().create_event();
  control().fail_nth(vendor().record, 1, kIllegal);
  EXPECT_NO_THROW(stream->record(*event));
  EXPECT_EQ(event->query(), EventState::kFailed);
}

// G7
TEST_P(DriverFailure, LossPutsMemoryInDoubtAndNothingIsGivenBack) {
  auto buffer = device().allocate(64);
  auto host = std::make_unique<PinnedMemory>(device(), 64);
  auto stream = device().create_stream();
  const auto event = device().create_event();
  EXPECT_FALSE(device().lost().has_value());
  const auto before = std::chrono::system_clock::now();
  control().fail_nth(vendor().record, 1, kIllegal);
  stream->record(*event);
  const auto loss = device().lost();
  ASSERT_TRUE(loss.has_value());
  EXPECT_EQ(loss->memory, LostMemory::kInDoubt);
  EXPECT_NE(loss->why.find("record an event"), std::string::npos) << loss->why;
  EXPECT_GE(loss->since, before);
  EXPECT_LE(loss->since, std::chrono::system_clock::now());
  const std::uint64_t num_alive = control().num_alive();
  buffer.reset();
  host.reset();
  stream.reset();
  EXPECT_EQ(control().num_alive(), num_alive) << "the device may still touch them";
}

TEST_P(DriverFailure, DriverThatWentDownIsLostAndQuiet) {
  for (const int code : {4, 709}) {  // ..._DEINITIALIZED, ..._CONTEXT_IS_DESTROYED
    control().reset();
    open();
    const auto buffer = device().allocate(64);
    const auto stream = device().create_stream();
    const auto event = device().create_event();
    stream->fill(buffer->address(), 1, 64);
    stream->record(*event);
    control().lose(code);
    EXPECT_EQ(event->wait(kHang), EventState::kFailed);
    ASSERT_TRUE(device().lost().has_value());
    EXPECT_EQ(device().lost()->memory, LostMemory::kQuiet);
    EXPECT_TRUE(stream->synchronize(kHang)) << "nothing of it runs";
    EXPECT_THROW(stream->fill(buffer->address(), 1, 64), DeviceError);
  }
}

TEST_P(DriverFailure, MemoryInDoubtBecomesQuietWhenTheDriverGoesDown) {
  auto buffer = device().allocate(64);
  const auto stream = device().create_stream();
  const auto event = device().create_event();
  control().lose(kIllegal);
  stream->record(*event);
  const auto in_doubt = device().lost();
  ASSERT_TRUE(in_doubt.has_value());
  EXPECT_EQ(in_doubt->memory, LostMemory::kInDoubt);
  control().lose(4);
  buffer.reset();  // Any call that reaches the driver.
  EXPECT_EQ(device().lost()->memory, LostMemory::kQuiet);
  EXPECT_EQ(device().lost()->since, in_doubt->since);
  EXPECT_EQ(device().lost()->why, in_doubt->why);
}

TEST_P(DriverFailure, StreamWaitsForItsWorkEvenIfNoEventCanBeHad) {
  const auto buffer = device().allocate(1 << 20);
  PinnedMemory host(device(), 1 << 20);
  auto stream = device().create_stream();
  stream->fill(buffer->address(), 8, 1 << 20);
  stream->copy(CopyDirection::kDeviceToHost, quarters(host, *buffer));
  control().fail_nth(vendor().create_event, 1, 2);
  stream.reset();
  EXPECT_TRUE(host.all(8));
}

// nothing may hang or stop the process when Python outlives the driver
TEST_P(DriverFailure, EverythingMayBeDestroyedAfterTheDriverWentDown) {
  auto buffer = device().allocate(64);
  auto host = std::make_unique<PinnedMemory>(device(), 64);
  auto stream = device().create_stream();
  auto event = device().create_event();
  stream->fill(buffer->address(), 1, 64);
  stream->record(*event);
  control().lose(4);  // CUDA_ERROR_DEINITIALIZED, hipErrorDeinitialized
  stream.reset();
  event.reset();
  host.reset();
  buffer.reset();
}

TEST_P(DriverFailure, FailedRegistrationLeavesTheRangeFree) {
  std::vector<std::uint8_t> memory(64);
  const std::uint64_t num_before =
      (static_cast<void>(device().memory_info()), control().num_alive());
  control().fail_nth(vendor().register_host, 1, kInvalid);
  EXPECT_THROW(std::ignore = device().register_host(memory.data(), 64), DeviceError);
  control().fail_nth(vendor().host_pointer, 1, kInvalid);
  EXPECT_THROW(std::ignore = device().register_host(memory.data(), 64), DeviceError);
  EXPECT_EQ(control().num_alive(), num_before);
  EXPECT_NO_THROW(std::ignore = device().register_host(memory.data(), 64));
}

// vllm#51081
TEST_P(DriverFailure, RegistrationOf512GiBIsRefusedBeforeTheDriverIsAsked) {
  std::uint8_t byte = 0;
  EXPECT_THROW(std::ignore = device().register_host(&byte, std::uint64_t{512} << 30U), DeviceError);
  EXPECT_EQ(control().num_calls(vendor().register_host), 0U);
}

TEST_P(DriverFailure, AllocationNamesWhatIsFree) {
  control().fail_nth(vendor().allocate, 1, 2);
  try {
    std::ignore = device().allocate(12345);
    FAIL() << "allocated";
  } catch (const ResourceError& error) {
    const std::string why = error.what();
    EXPECT_NE(why.find("12345 bytes"), std::string::npos) << why;
    EXPECT_NE(why.find("4294967296 bytes are free"), std::string::npos) << why;
  }
}

}  // namespace
}  // namespace kvferry::gpu
