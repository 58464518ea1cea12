// SPDX-License-Identifier: Apache-2.0
#include "device_test.hpp"

#include <thread>

namespace kvferry::gpu {
namespace {

constexpr std::size_t kSize = 1000;

class StreamConformance : public DeviceTest {
 protected:
  /// Copies all of `buffer` to `host`.
  static void store(Stream& stream, const DeviceBuffer& buffer, const HostMemory& host) {
    const CopyRun run{host.address(), buffer.address(), buffer.size_bytes()};
    stream.copy(CopyDirection::kDeviceToHost, {&run, 1});
  }
  /// Copies all of `host` to `buffer`.
  static void load(Stream& stream, const HostMemory& host, const DeviceBuffer& buffer) {
    const CopyRun run{buffer.address(), host.address(), buffer.size_bytes()};
    stream.copy(CopyDirection::kHostToDevice, {&run, 1});
  }
  static std::vector<std::uint8_t> all(std::uint8_t value) {
    return std::vector<std::uint8_t>(kSize, value);
  }
};
KVFERRY_INSTANTIATE_CONFORMANCE(StreamConformance);

TEST_P(StreamConformance, RunsOperationsInOrderOfSubmission) {
  const auto buffer = device().allocate(kSize);
  HostMemory first(device(), kSize);
  HostMemory second(device(), kSize);
  const auto stream = device().create_stream();
  stream->fill(buffer->address(), 1, kSize);
  store(*stream, *buffer, first);
  stream->fill(buffer->address(), 2, kSize);
  store(*stream, *buffer, second);
  ASSERT_TRUE(stream->synchronize(kHang));
  EXPECT_EQ(first.contents(), all(1));
  EXPECT_EQ(second.contents(), all(2));
}

TEST_P(StreamConformance, RunsWhileAnotherStreamIsHeld) {
  const auto buffer = device().allocate(kSize);
  HostMemory host(device(), kSize);
  const auto held = device().create_stream();
  const auto free = device().create_stream();
  Hold hold(under_test(), *held);
  free->fill(buffer->address(), 3, kSize);
  store(*free, *buffer, host);
  EXPECT_TRUE(free->synchronize(kHang));
  EXPECT_EQ(host.contents(), all(3));
  hold.release();
}

TEST_P(StreamConformance, StartsLaterWorkOnlyAfterTheEventOfAnotherStream) {
  const auto buffer = device().allocate(kSize);
  HostMemory host(device(), kSize);
  const auto producer = device().create_stream();
  const auto consumer = device().create_stream();
  const auto produced = device().create_event();
  Hold hold(under_test(), *producer);
  producer->fill(buffer->address(), 4, kSize);
  producer->record(*produced);
  consumer->wait(*produced);
  store(*consumer, *buffer, host);
  EXPECT_FALSE(consumer->synchronize(kMoment));
  hold.release();
  ASSERT_TRUE(consumer->synchronize(kHang));
  EXPECT_EQ(host.contents(), all(4));
}

TEST_P(StreamConformance, DelayedZeroingDoesNotOverwriteALoadOrderedAfterIt) {
  const auto block = device().allocate(kSize);
  HostMemory slot(device(), kSize);
  const auto loaded = pattern(kSize, 5);
  std::copy(loaded.begin(), loaded.end(), slot.bytes().begin());
  const auto engine = device().create_stream();
  const auto loads = device().create_stream();
  const auto zeroed = device().create_event();
  Hold hold(under_test(), *engine);
  engine->fill(block->address(), 0, kSize);
  engine->record(*zeroed);
  loads->wait(*zeroed);
  load(*loads, slot, *block);
  EXPECT_FALSE(loads->synchronize(kMoment));
  hold.release();
  ASSERT_TRUE(loads->synchronize(kHang));
  EXPECT_EQ(download(block->address(), kSize), loaded);
}

TEST_P(StreamConformance, WaitKeepsAPendingPointWhenTheEventIsRecordedAgain) {
  const auto held = device().create_stream();
  const auto waiting = device().create_stream();
  const auto free = device().create_stream();
  const auto event = device().create_event();
  Hold hold(under_test(), *held);
  held->record(*event);
  waiting->wait(*event);
  free->record(*event);
  ASSERT_EQ(event->wait(kHang), EventState::kDone);
  EXPECT_FALSE(waiting->synchronize(kMoment)) << "the older point is not reached";
  hold.release();
  EXPECT_TRUE(waiting->synchronize(kHang));
}

TEST_P(StreamConformance, WaitKeepsAReachedPointWhenTheEventIsRecordedAgain) {
  const auto held = device().create_stream();
  const auto waiting = device().create_stream();
  const auto event = device().create_event();
  held->record(*event);
  waiting->wait(*event);
  Hold hold(under_test(), *held);
  held->record(*event);
  EXPECT_TRUE(waiting->synchronize(kHang));
  EXPECT_EQ(event->query(), EventState::kPending);
  hold.release();
}

TEST_P(StreamConformance, SynchronizeGivesUpAtItsBound) {
  const auto stream = device().create_stream();
  EXPECT_TRUE(stream->synchronize(std::chrono::nanoseconds::zero())) << "nothing was submitted";
  Hold hold(under_test(), *stream);
  EXPECT_FALSE(stream->synchronize(std::chrono::nanoseconds::min()));
  EXPECT_FALSE(stream->synchronize(std::chrono::milliseconds(1)));
  hold.release();
  EXPECT_TRUE(stream->synchronize(std::chrono::nanoseconds::max()));
}

TEST_P(StreamConformance, AHeldStreamLetsGoWhenTheTestLeavesItsScope) {
  const auto stream = device().create_stream();
  {
    const Hold hold(under_test(), *stream);
    EXPECT_FALSE(stream->synchronize(kMoment));
  }
  EXPECT_TRUE(stream->synchronize(kHang));
}

TEST_P(StreamConformance, AHeldStreamLetsGoByItselfAndItIsSaid) {
  const auto stream = device().create_stream();
  under_test().hold(*stream, kMoment);
  EXPECT_TRUE(stream->synchronize(kHang));
  EXPECT_EQ(under_test().release(), 1U);
  EXPECT_EQ(under_test().release(), 0U);
}

TEST_P(StreamConformance, SynchronizeReportsFailedWorkAsEnded) {
  const auto stream = device().create_stream();
  under_test().submit_failing(*stream);
  EXPECT_TRUE(stream->synchronize(kHang));
}

TEST_P(StreamConformance, DestructionWaitsForOutstandingWork) {
  const auto buffer = device().allocate(kSize);
  HostMemory host(device(), kSize);
  auto stream = device().create_stream();
  Hold hold(under_test(), *stream);
  stream->fill(buffer->address(), 6, kSize);
  store(*stream, *buffer, host);
  std::thread destroyer([&] { stream.reset(); });
  hold.release();
  destroyer.join();
  EXPECT_EQ(host.contents(), all(6));
}

TEST_P(StreamConformance, RejectedSubmissionRunsNothingAndTheStreamGoesOn) {
  const auto buffer = device().allocate(kSize);
  HostMemory host(device(), kSize);
  const auto stream = device().create_stream();
  stream->fill(buffer->address(), 7, kSize);
  const std::vector<CopyRun> half_good = {{host.address(), buffer->address(), 10},
                                          {host.address() + kSize, buffer->address(), 10}};
  EXPECT_THROW(stream->copy(CopyDirection::kDeviceToHost, half_good), DeviceError);
  ASSERT_TRUE(stream->synchronize(kHang));
  EXPECT_EQ(host.contents(), all(0));
  store(*stream, *buffer, host);
  ASSERT_TRUE(stream->synchronize(kHang));
  EXPECT_EQ(host.contents(), all(7));
}

TEST_P(StreamConformance, ViewOrdersItsWorkBeforeThatOfAStreamThatWaitsForIt) {
  const auto buffer = device().allocate(kSize);
  HostMemory host(device(), kSize);
  const auto engine = device().view_stream(under_test().engine_stream());
  const auto stores = device().create_stream();
  const auto computed = device().create_event();
  engine->fill(buffer->address(), 8, kSize);
  engine->record(*computed);
  stores->wait(*computed);
  store(*stores, *buffer, host);
  ASSERT_TRUE(stores->synchronize(kHang));
  EXPECT_EQ(computed->query(), EventState::kDone);
  EXPECT_EQ(host.contents(), all(8));
  EXPECT_TRUE(engine->synchronize(kHang));
}

TEST_P(StreamConformance, ViewWaitsForAnEventOfOurStream) {
  const auto loads = device().create_stream();
  const auto engine = device().view_stream(under_test().engine_stream());
  const auto loaded = device().create_event();
  const auto computed = device().create_event();
  Hold hold(under_test(), *loads);
  loads->record(*loaded);
  std::thread engine_thread([&] {
    engine->wait(*loaded);
    engine->record(*computed);
  });
  std::this_thread::sleep_for(kMoment);
  EXPECT_NE(computed->query(), EventState::kDone);
  hold.release();
  engine_thread.join();
  EXPECT_EQ(computed->wait(kHang), EventState::kDone);
}

TEST_P(StreamConformance, RejectsAnEventOfAnotherDevice) {
  const auto other = GetParam().open();
  const auto foreign_stream = other->device().create_stream();
  const auto foreign = other->device().create_event();
  const auto stream = device().create_stream();
  EXPECT_THROW(stream->record(*foreign), DeviceError);
  foreign_stream->record(*foreign);
  EXPECT_THROW(stream->wait(*foreign), DeviceError);
}

using StreamConformanceDeathTest = StreamConformance;
KVFERRY_INSTANTIATE_CONFORMANCE(StreamConformanceDeathTest);

TEST_P(StreamConformanceDeathTest, WaitForAnUnrecordedEventIsABrokenInvariant) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto stream = device().create_stream();
  const auto event = device().create_event();
  EXPECT_DEATH(stream->wait(*event), "broken invariant");
}

}  // namespace
}  // namespace kvferry::gpu
