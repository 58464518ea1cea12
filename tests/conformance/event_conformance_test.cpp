// SPDX-License-Identifier: Apache-2.0
#include "device_test.hpp"

#include <thread>
#include <utility>

namespace kvferry::gpu {
namespace {

class EventConformance : public DeviceTest {};
KVFERRY_INSTANTIATE_CONFORMANCE(EventConformance);

TEST_P(EventConformance, IsUnrecordedUntilRecorded) {
  const auto event = device().create_event();
  EXPECT_EQ(event->query(), EventState::kUnrecorded);
  EXPECT_EQ(event->wait(kHang), EventState::kUnrecorded);
  EXPECT_EQ(event->failure(), "");
}

TEST_P(EventConformance, IsPendingWhileEarlierWorkRunsAndDoneAfter) {
  const auto stream = device().create_stream();
  const auto event = device().create_event();
  Hold hold(under_test(), *stream);
  stream->record(*event);
  EXPECT_EQ(event->query(), EventState::kPending);
  EXPECT_EQ(event->wait(std::chrono::milliseconds(1)), EventState::kPending);
  EXPECT_EQ(event->wait(std::chrono::nanoseconds::min()), EventState::kPending);
  EXPECT_EQ(event->failure(), "");
  hold.release();
  EXPECT_EQ(event->wait(std::chrono::nanoseconds::max()), EventState::kDone);
  EXPECT_EQ(event->query(), EventState::kDone);
  EXPECT_EQ(event->failure(), "");
}

TEST_P(EventConformance, WakesAllWaitersWhenDone) {
  const auto stream = device().create_stream();
  const auto event = device().create_event();
  Hold hold(under_test(), *stream);
  stream->record(*event);
  std::vector<EventState> states(3, EventState::kUnrecorded);
  std::vector<std::thread> waiters;
  for (EventState& state : states) {
    waiters.emplace_back([&] { state = event->wait(kHang); });
  }
  hold.release();
  for (std::thread& waiter : waiters) waiter.join();
  for (const EventState state : states) EXPECT_EQ(state, EventState::kDone);
}

TEST_P(EventConformance, RecordedAgainAfterDoneIsPendingAgain) {
  const auto stream = device().create_stream();
  const auto event = device().create_event();
  stream->record(*event);
  ASSERT_EQ(event->wait(kHang), EventState::kDone);
  Hold hold(under_test(), *stream);
  stream->record(*event);
  EXPECT_EQ(event->query(), EventState::kPending);
  hold.release();
  EXPECT_EQ(event->wait(kHang), EventState::kDone);
}

TEST_P(EventConformance, RecordedAgainWhilePendingMeansTheNewerPoint) {
  const auto held = device().create_stream();
  const auto free = device().create_stream();
  const auto event = device().create_event();
  Hold hold(under_test(), *held);
  held->record(*event);
  ASSERT_EQ(event->query(), EventState::kPending);
  free->record(*event);
  EXPECT_EQ(event->wait(kHang), EventState::kDone);
  hold.release();
  EXPECT_TRUE(held->synchronize(kHang));
  EXPECT_EQ(event->query(), EventState::kDone);
}

TEST_P(EventConformance, IsUntouchedByARejectedSubmission) {
  const auto stream = device().create_stream();
  const auto unrecorded = device().create_event();
  const auto done = device().create_event();
  stream->record(*done);
  ASSERT_EQ(done->wait(kHang), EventState::kDone);

  const std::vector<CopyRun> too_many(kMaxBatchRuns + 1);
  EXPECT_THROW(stream->copy(CopyDirection::kHostToDevice, too_many), DeviceError);

  EXPECT_EQ(unrecorded->query(), EventState::kUnrecorded);
  EXPECT_EQ(done->query(), EventState::kDone);
  stream->record(*unrecorded);
  EXPECT_EQ(unrecorded->wait(kHang), EventState::kDone)
      << "a submission that threw is no failure of the stream";
}

TEST_P(EventConformance, MayBeDestroyedWhilePending) {
  const auto stream = device().create_stream();
  const auto waiting = device().create_stream();
  auto event = device().create_event();
  const auto after = device().create_event();
  Hold hold(under_test(), *stream);
  stream->record(*event);
  waiting->wait(*event);
  waiting->record(*after);
  event.reset();
  EXPECT_EQ(after->wait(kMoment), EventState::kPending);
  hold.release();
  EXPECT_EQ(after->wait(kHang), EventState::kDone);
  EXPECT_TRUE(stream->synchronize(kHang));
}

TEST_P(EventConformance, KeepsItsStateWhenItsStreamIsGone) {
  const auto done = device().create_event();
  const auto failed = device().create_event();
  auto stream = device().create_stream();
  stream->record(*done);
  under_test().submit_failing(*stream);
  stream->record(*failed);
  stream.reset();  // which waits
  EXPECT_EQ(done->query(), EventState::kDone);
  EXPECT_EQ(failed->query(), EventState::kFailed);
  EXPECT_NE(failed->failure(), "");
}

TEST_P(EventConformance, OfAStreamThatIsGoneIsWaitedForAndRecordedAgain) {
  const auto event = device().create_event();
  auto gone = device().create_stream();
  gone->record(*event);
  gone.reset();
  const auto stream = device().create_stream();
  stream->wait(*event);
  Hold hold(under_test(), *stream);
  stream->record(*event);
  EXPECT_EQ(event->query(), EventState::kPending);
  hold.release();
  EXPECT_EQ(event->wait(kHang), EventState::kDone);
}

TEST_P(EventConformance, IsReachedAlthoughItsStreamIsBeingDestroyed) {
  const auto event = device().create_event();
  auto stream = device().create_stream();
  Hold hold(under_test(), *stream);
  stream->record(*event);
  std::thread destroyer([&stream] { stream.reset(); });
  EXPECT_EQ(event->wait(kMoment), EventState::kPending);
  hold.release();
  EXPECT_EQ(event->wait(kHang), EventState::kDone);
  destroyer.join();
}

// A driver's event that was never recorded reads as complete.
TEST_P(EventConformance, IsStillUnrecordedBesideOthersThatWereUsedAndDropped) {
  const auto stream = device().create_stream();
  for (int i = 0; i < 20; ++i) {
    const auto used = device().create_event();
    stream->record(*used);
    ASSERT_EQ(used->wait(kHang), EventState::kDone);
  }
  const auto fresh = device().create_event();
  EXPECT_EQ(fresh->query(), EventState::kUnrecorded);
  Hold hold(under_test(), *stream);
  stream->record(*fresh);
  EXPECT_EQ(fresh->query(), EventState::kPending);
  hold.release();
  EXPECT_EQ(fresh->wait(kHang), EventState::kDone);
}

TEST_P(EventConformance, DroppedWhilePendingDoesNotDisturbTheNextOnes) {
  const auto held = device().create_stream();
  const auto free = device().create_stream();
  Hold hold(under_test(), *held);
  for (int i = 0; i < 20; ++i) held->record(*device().create_event());
  std::vector<std::unique_ptr<Event>> events;
  for (int i = 0; i < 20; ++i) {
    events.push_back(device().create_event());
    (i % 2 == 0 ? free : held)->record(*events.back());
  }
  ASSERT_TRUE(free->synchronize(kHang));
  for (std::size_t i = 0; i < events.size(); ++i) {
    EXPECT_EQ(events[i]->query(), i % 2 == 0 ? EventState::kDone : EventState::kPending) << i;
  }
  hold.release();
  for (const auto& event : events) EXPECT_EQ(event->wait(kHang), EventState::kDone);
}

TEST_P(EventConformance, FailsWhenAnOperationSinceTheLastRecordFailed) {
  const auto stream = device().create_stream();
  const auto before = device().create_event();
  const auto failed = device().create_event();
  stream->record(*before);
  under_test().submit_failing(*stream);
  stream->record(*failed);
  EXPECT_EQ(before->wait(kHang), EventState::kDone);
  EXPECT_EQ(failed->wait(kHang), EventState::kFailed);
  EXPECT_NE(failed->failure(), "");
}

TEST_P(EventConformance, StaysFailedForEveryLaterQueryUntilRecordedAgain) {
  const auto stream = device().create_stream();
  const auto failed = device().create_event();
  const auto later = device().create_event();
  under_test().submit_failing(*stream);
  stream->record(*failed);
  ASSERT_EQ(failed->wait(kHang), EventState::kFailed);
  const std::string why = failed->failure();

  stream->record(*later);
  EXPECT_EQ(later->wait(kHang), EventState::kDone) << "one failure is reported once";
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(failed->query(), EventState::kFailed);
    EXPECT_EQ(failed->wait(kHang), EventState::kFailed);
    EXPECT_EQ(failed->failure(), why);
  }

  stream->record(*failed);
  EXPECT_EQ(failed->wait(kHang), EventState::kDone);
  EXPECT_EQ(failed->failure(), "");
}

TEST_P(EventConformance, FailsThoughGoodWorkCameBehindTheFailure) {
  const auto stream = device().create_stream();
  const auto failed = device().create_event();
  const auto buffer = device().allocate(64);
  under_test().submit_failing(*stream);
  stream->fill(buffer->address(), 1, 64);
  stream->record(*failed);
  EXPECT_EQ(failed->wait(kHang), EventState::kFailed);
}

TEST_P(EventConformance, IsPendingWhileEarlierWorkRunsAndFailedAfter) {
  const auto stream = device().create_stream();
  const auto failed = device().create_event();
  under_test().submit_failing(*stream);
  Hold hold(under_test(), *stream);
  stream->record(*failed);
  EXPECT_EQ(failed->wait(kMoment), EventState::kPending)
      << "the device is not through with what was submitted before";
  hold.release();
  EXPECT_EQ(failed->wait(kHang), EventState::kFailed);
}

TEST_P(EventConformance, FailureStaysWithinItsStream) {
  const auto failing = device().create_stream();
  const auto other = device().create_stream();
  const auto failed = device().create_event();
  const auto after = device().create_event();
  under_test().submit_failing(*failing);
  failing->record(*failed);
  other->wait(*failed);
  other->record(*after);
  EXPECT_EQ(after->wait(kHang), EventState::kDone) << "waiting for a failed event is no failure";
  EXPECT_EQ(failed->query(), EventState::kFailed);
}

TEST_P(EventConformance, ElapsedTimeCoversTheWorkBetween) {
  const auto stream = device().create_stream();
  const auto begin = device().create_event();
  const auto end = device().create_event();
  stream->record(*begin);
  ASSERT_EQ(begin->wait(kHang), EventState::kDone);
  Hold hold(under_test(), *stream);
  stream->record(*end);
  std::this_thread::sleep_for(kMoment);
  hold.release();
  ASSERT_EQ(end->wait(kHang), EventState::kDone);
  EXPECT_GE(end->elapsed_since(*begin), kMoment);
}

TEST_P(EventConformance, ElapsedTimeOfAnEventNotDoneThrows) {
  const auto stream = device().create_stream();
  const auto done = device().create_event();
  const auto unrecorded = device().create_event();
  const auto failed = device().create_event();
  stream->record(*done);
  under_test().submit_failing(*stream);
  stream->record(*failed);
  ASSERT_EQ(failed->wait(kHang), EventState::kFailed);
  EXPECT_THROW(std::ignore = unrecorded->elapsed_since(*done), DeviceError);
  EXPECT_THROW(std::ignore = done->elapsed_since(*unrecorded), DeviceError);
  EXPECT_THROW(std::ignore = failed->elapsed_since(*done), DeviceError);
}

}  // namespace
}  // namespace kvferry::gpu
