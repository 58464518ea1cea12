// SPDX-License-Identifier: Apache-2.0
// Requests that the engine cannot reach in its queue, although their loads have ended.
#include "scheduler_fixture.hpp"

#include <optional>

namespace kvferry::connector {
namespace {

/// With the load of "loaded" ended, and "first" before it in the engine's queue.
class LoadedQueueTest : public SchedulerTest {
 protected:
  LoadedQueueTest() {
    register_ranks({});
    fill({1, 2, 3, 4}, 0);
    arrive("first", {9, 8, 7});
    arrive("loaded", {1, 2, 3, 4});
    EXPECT_EQ(engine_->lookup("loaded", 0, 17), 16U);
    engine_->on_allocated("loaded", blocks_of({40, 41, 42, 43}), 16);
    const StepPlan load = plan();
    EXPECT_EQ(load.loads.size(), 1U);
    fold_ends(load);
  }
  [[nodiscard]] std::optional<std::uint32_t> ask() { return engine_->lookup("first", 0, 12); }
};

TEST_F(LoadedQueueTest, AStepInWhichItCouldBeReachedComesFirst) {
  EXPECT_EQ(ask(), 0U);
  schedule("loaded", {40, 41, 42, 43, 44}, 16, 1);
  static_cast<void>(plan());
  static_cast<void>(plan());
  EXPECT_EQ(ask(), 0U);
}

TEST_F(LoadedQueueTest, WhoIsBeforeItAsksAgainIfNothingRan) {
  static_cast<void>(plan());
  EXPECT_EQ(ask(), kAskAgain);
  EXPECT_FALSE(engine_->note_local("first", 0));
  // It is passed over, and the engine reaches the loaded one.
  schedule("loaded", {40, 41, 42, 43, 44}, 16, 1);
  EXPECT_EQ(ask(), 0U);
  EXPECT_TRUE(engine_->note_local("first", 0));
}

TEST_F(LoadedQueueTest, WhoIsBeforeItIsAnsweredInEveryOtherStep) {
  for (int i = 0; i < 3; ++i) {
    static_cast<void>(plan());
    EXPECT_EQ(ask(), kAskAgain);
    static_cast<void>(plan());
    EXPECT_EQ(ask(), 0U);
  }
}

TEST_F(LoadedQueueTest, NobodyAsksAgainWhileAnotherRuns) {
  arrive("runs", {5});
  for (int i = 0; i < 3; ++i) {
    schedule("runs", {20}, 0, 4);
    static_cast<void>(plan());
    EXPECT_EQ(ask(), 0U);
  }
}

TEST_F(LoadedQueueTest, ItIsReachedWhenItAsksItself) {
  static_cast<void>(plan());
  EXPECT_NE(engine_->lookup("loaded", 0, 17), kAskAgain) << "the engine took its failed load back";
  EXPECT_EQ(ask(), 0U);
}

TEST_F(LoadedQueueTest, ItNeedsNotBeReachedWhenItIsFinishedOrPreempted) {
  static_cast<void>(plan());
  EXPECT_EQ(ask(), kAskAgain);
  engine_->on_preempted("loaded");
  EXPECT_EQ(ask(), 0U);
  engine_->on_finished("loaded");
  EXPECT_EQ(ask(), 0U);
}

TEST_F(LoadedQueueTest, AnAbortedLoaderIsNotWaitedFor) {
  arrive("aborted", {1, 2, 3, 4});
  EXPECT_EQ(engine_->lookup("aborted", 0, 17), 16U);
  engine_->on_allocated("aborted", blocks_of({50, 51, 52, 53}), 16);
  schedule("loaded", {40, 41, 42, 43, 44}, 16, 1);
  const StepPlan load = plan();
  engine_->on_finished("aborted");
  fold_ends(load);
  static_cast<void>(plan());
  EXPECT_EQ(ask(), 0U);
}

}  // namespace
}  // namespace kvferry::connector
