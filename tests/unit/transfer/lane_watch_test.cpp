// SPDX-License-Identifier: Apache-2.0
#include "lane_watch.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>

namespace kvferry::transfer {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::seconds;

constexpr TransferKind kLoad = TransferKind::kLoad;
constexpr TransferKind kStore = TransferKind::kStore;

class LaneWatchTest : public ::testing::Test {
 protected:
  LaneWatchTest() { watch_.look(now_); }
  /// Time passes under the eyes of the transfer thread.
  void pass(nanoseconds time) {
    for (; time > nanoseconds(0); time -= milliseconds(50)) {
      now_ += std::min<nanoseconds>(time, milliseconds(50));
      watch_.look(now_);
    }
  }

  /// A piece that this test does not end.
  void begin(TransferKind kind, std::uint64_t transfer) {
    static_cast<void>(watch_.begin(kind, TransferId(transfer)));
  }

  LaneWatch::Clock::time_point now_{std::chrono::hours(1)};
  LaneWatch watch_;
};

TEST_F(LaneWatchTest, ADirectionThatMovesNothingIsStalled) {
  begin(kLoad, 3);
  begin(kLoad, 4);
  pass(seconds(10));
  EXPECT_FALSE(watch_.stalled(seconds(10)));
  pass(milliseconds(1));
  const auto stalled = watch_.stalled(seconds(10));
  ASSERT_TRUE(stalled);
  EXPECT_EQ(stalled->transfer, TransferId(3));
  EXPECT_EQ(stalled->kind, kLoad);
  EXPECT_EQ(stalled->stall, Stall::kLink);
  EXPECT_EQ(stalled->age, seconds(10) + milliseconds(1));
}

TEST_F(LaneWatchTest, OneWithNothingSubmittedIsNot) {
  pass(seconds(10));
  EXPECT_FALSE(watch_.stalled(nanoseconds(0)));
  const std::uint64_t piece = watch_.begin(kStore, TransferId(1));
  EXPECT_FALSE(watch_.stalled(nanoseconds(0))) << "its time begins with the first copy";
  pass(seconds(1));
  watch_.end(kStore, piece);
  pass(seconds(10));
  EXPECT_FALSE(watch_.stalled(nanoseconds(0)));
}

// A load that took longer than transfer_timeout_s ended the server, however well it went.
TEST_F(LaneWatchTest, TheEndOfTheOldestPieceBeginsTheTimeAnew) {
  std::uint64_t oldest = watch_.begin(kLoad, TransferId(1));
  for (int i = 0; i < 100; ++i) {
    const std::uint64_t next = watch_.begin(kLoad, TransferId(1));
    pass(seconds(9));
    ASSERT_FALSE(watch_.stalled(seconds(10)));
    watch_.end(kLoad, oldest);
    oldest = next;
  }
  pass(seconds(11));
  EXPECT_EQ(watch_.stalled(seconds(10))->transfer, TransferId(1));
}

TEST_F(LaneWatchTest, YoungerPiecesThatEndDoNotHideAnOlderOneThatHangs) {
  const std::uint64_t hangs = watch_.begin(kLoad, TransferId(1));
  for (int i = 0; i < 11; ++i) {
    const std::uint64_t sibling = watch_.begin(kLoad, TransferId(1));
    const std::uint64_t other = watch_.begin(kLoad, TransferId(2));
    pass(seconds(1));
    watch_.end(kLoad, sibling);
    watch_.end(kLoad, other);
  }
  begin(kLoad, 3);
  EXPECT_EQ(watch_.stalled(seconds(10))->transfer, TransferId(1));
  watch_.end(kLoad, hangs);
  EXPECT_FALSE(watch_.stalled(seconds(10)));
  pass(seconds(11));
  EXPECT_EQ(watch_.stalled(seconds(10))->transfer, TransferId(3));
}

TEST_F(LaneWatchTest, DirectionsStallApart) {
  const std::uint64_t store = watch_.begin(kStore, TransferId(1));
  for (int i = 0; i < 20; ++i) {
    const std::uint64_t load = watch_.begin(kLoad, TransferId(3));
    pass(seconds(1));
    watch_.end(kLoad, load);
  }
  EXPECT_EQ(watch_.stalled(seconds(10))->transfer, TransferId(1));
  watch_.end(kStore, store);
  EXPECT_FALSE(watch_.stalled(seconds(10)));
}

TEST_F(LaneWatchTest, TheLongerStallIsTold) {
  begin(kLoad, 1);
  pass(seconds(1));
  begin(kStore, 2);
  pass(seconds(10));
  EXPECT_EQ(watch_.stalled(seconds(5))->kind, kLoad);
}

TEST_F(LaneWatchTest, AWaitForTheComputeStreamIsNoStall) {
  begin(kStore, 1);
  for (int i = 0; i < 20; ++i) {
    pass(seconds(1));
    watch_.hold(kStore);
  }
  EXPECT_FALSE(watch_.stalled(seconds(1)));
  pass(seconds(2));
  EXPECT_EQ(watch_.stalled(seconds(1))->age, seconds(2));
}

// docker pause, the cgroup freezer, a debugger: the worker died when it went on.
TEST_F(LaneWatchTest, AStopOfTheProcessCountsATenthOfASecond) {
  begin(kLoad, 1);
  watch_.enter_driver();
  for (int stop = 0; stop < 9; ++stop) {
    now_ += std::chrono::hours(1);
    watch_.look(now_);
  }
  EXPECT_FALSE(watch_.stalled(seconds(1)));
  EXPECT_EQ(watch_.in_driver(), milliseconds(900));
}

TEST_F(LaneWatchTest, TimeBeforeTheFirstLookIsNone) {
  LaneWatch fresh;
  static_cast<void>(fresh.begin(kLoad, TransferId(1)));
  fresh.look(now_ + std::chrono::hours(1));
  EXPECT_FALSE(fresh.stalled(nanoseconds(0)));
}

TEST_F(LaneWatchTest, TheDriverHasTheThreadFromItsEntryOn) {
  EXPECT_FALSE(watch_.in_driver());
  pass(seconds(5));
  watch_.enter_driver();
  pass(seconds(3));
  EXPECT_EQ(watch_.in_driver(), seconds(3));
  watch_.leave_driver();
  EXPECT_FALSE(watch_.in_driver());
}

}  // namespace
}  // namespace kvferry::transfer
