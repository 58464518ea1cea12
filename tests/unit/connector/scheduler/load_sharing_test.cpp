// SPDX-License-Identifier: Apache-2.0
#include "scheduler_fixture.hpp"

#include <optional>

namespace kvferry::connector {
namespace {

/// With keys 1 to 4 in the tier, and "loader" loading them.
class LoadSharingTest : public SchedulerTest {
 protected:
  LoadSharingTest() {
    max_load_wait_ = std::chrono::seconds(1);
    restart();
    register_ranks({});
    fill({1, 2, 3, 4}, 0);
    load_ = begin("loader");
  }

  /// The plan with the load of keys 1 to 4 into blocks of its own.
  StepPlan begin(std::string_view id) {
    arrive(id, {1, 2, 3, 4});
    EXPECT_EQ(engine_->lookup(id, 0, 17), 16U);
    engine_->on_allocated(id, blocks_of({40, 41, 42, 43}), 16);
    StepPlan step = plan();
    EXPECT_EQ(step.loads.size(), 1U);
    return step;
  }
  [[nodiscard]] std::optional<std::uint32_t> ask(std::string_view id, std::uint32_t num_local = 0,
                                                 std::uint32_t num_tokens = 17) {
    return engine_->lookup(id, num_local, num_tokens);
  }

  StepPlan load_;
};

TEST_F(LoadSharingTest, WhoWouldLoadTheSameWaits) {
  arrive("r", {1, 2, 3, 4});
  EXPECT_EQ(ask("r"), kAskAgain);
  EXPECT_EQ(ask("r"), kAskAgain);
  EXPECT_EQ(view().load_waits, 1U);
}

TEST_F(LoadSharingTest, WhatTheEngineHasThenIsNotLoaded) {
  arrive("r", {1, 2, 3, 4});
  EXPECT_EQ(ask("r"), kAskAgain);
  fold_ends(load_);
  // The engine asks before it has come to the loader, and behind that.
  EXPECT_EQ(ask("r"), kAskAgain);
  EXPECT_EQ(ask("r", 16), 0U);
}

TEST_F(LoadSharingTest, WhatTheEngineDoesNotHaveThenIsLoaded) {
  arrive("r", {1, 2, 3, 4});
  EXPECT_EQ(ask("r"), kAskAgain);
  fold_ends(load_);
  EXPECT_EQ(ask("r"), kAskAgain);
  EXPECT_EQ(ask("r"), 16U) << "its blocks were pushed out again";
}

TEST_F(LoadSharingTest, NobodyWaitsLongerThanTheBound) {
  arrive("r", {1, 2, 3, 4});
  EXPECT_EQ(ask("r"), kAskAgain);
  now_ += std::chrono::milliseconds(999);
  EXPECT_EQ(ask("r"), kAskAgain);
  now_ += std::chrono::milliseconds(1);
  EXPECT_EQ(ask("r"), 16U);
  EXPECT_EQ(ask("r"), 16U) << "once for each turn";
}

TEST_F(LoadSharingTest, NobodyWaitsForAnAbortedLoader) {
  arrive("r", {1, 2, 3, 4});
  EXPECT_EQ(ask("r"), kAskAgain);
  engine_->on_finished("loader");
  EXPECT_EQ(ask("r"), 16U);
  arrive("later", {1, 2, 3, 4});
  EXPECT_EQ(ask("later"), 16U);
}

TEST_F(LoadSharingTest, NobodyWaitsForALoadThatIsKnownToFail) {
  arrive("r", {1, 2, 3, 4});
  EXPECT_EQ(ask("r"), kAskAgain);
  engine_->reset_cache();
  EXPECT_EQ(ask("r"), 0U);
}

TEST_F(LoadSharingTest, NobodyWaitsForWhoWaits) {
  arrive("second", {1, 2, 3, 4});
  EXPECT_EQ(ask("second"), kAskAgain);
  now_ += std::chrono::seconds(1);
  EXPECT_EQ(ask("second"), 16U);
  engine_->on_allocated("second", blocks_of({50, 51, 52, 53}), 16);
  static_cast<void>(plan());
  EXPECT_EQ(ask("second"), 0U) << "it loads";
  EXPECT_EQ(view().num_loads_in_flight, 2U);
}

TEST_F(LoadSharingTest, APreemptedRequestMayWaitAgain) {
  arrive("r", {1, 2, 3, 4});
  EXPECT_EQ(ask("r"), kAskAgain);
  now_ += std::chrono::seconds(1);
  EXPECT_EQ(ask("r"), 16U);
  engine_->on_preempted("r");
  EXPECT_EQ(ask("r"), kAskAgain);
}

TEST_F(LoadSharingTest, ALittleOfItIsNotWorthTheWait) {
  fill({1, 2, 3, 4, 5, 6, 7, 8, 9}, 10);
  arrive("r", {1, 2, 3, 4, 5, 6, 7, 8, 9});
  EXPECT_EQ(ask("r", 0, 37), 36U);
  EXPECT_EQ(ask("r", 0, 33), kAskAgain) << "half of eight blocks";
}

TEST_F(LoadSharingTest, OnlyWhatIsAlikeCounts) {
  fill({1, 22, 23, 24}, 10);
  arrive("r", {1, 22, 23, 24});
  EXPECT_EQ(ask("r"), 16U);
}

TEST_F(LoadSharingTest, AnotherBeginningIsAnotherLoad) {
  arrive("r", {1, 2, 3, 4});
  EXPECT_EQ(ask("r", 4), 12U) << "the engine has the first block, which is loaded for the other";
}

TEST_F(LoadSharingTest, WithoutABoundNobodyWaits) {
  max_load_wait_ = std::chrono::seconds(0);
  restart();
  register_ranks({});
  fill({1, 2, 3, 4}, 0);
  load_ = begin("loader");
  arrive("r", {1, 2, 3, 4});
  EXPECT_EQ(ask("r"), 16U);
  EXPECT_EQ(view().load_waits, 0U);
}

}  // namespace
}  // namespace kvferry::connector
