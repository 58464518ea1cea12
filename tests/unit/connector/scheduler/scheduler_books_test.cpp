// SPDX-License-Identifier: Apache-2.0
// What the scheduler side says is under way, to people and to its recording.
#include "kvferry/connector/scheduler/scheduler_engine.hpp"

#include "complaint.hpp"
#include "scheduler_fixture.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace kvferry::connector {
namespace {

class SchedulerBooksTest : public SchedulerTest {
 protected:
  void SetUp() override {
    restart(16);
    register_ranks({.num_slots = 16, .ring_blocks = 8, .max_slots = 16});
  }
  /// A part of the books: the array of this name.
  [[nodiscard]] std::string list(const std::string& name) const {
    const std::string books = engine_->books();
    const std::size_t begin = books.find("\"" + name + "\": [");
    return books.substr(begin, books.find("}]", begin) - begin);
  }
  [[nodiscard]] static std::size_t count(const std::string& text, const std::string& part) {
    std::size_t number = 0;
    for (std::size_t at = 0; (at = text.find(part, at)) != std::string::npos; ++at) ++number;
    return number;
  }
};

TEST_F(SchedulerBooksTest, AnEngineAtRestHasNothingUnderWay) {
  expect_named(engine_->books(), {R"("requests": [], "loads": [], "stores": [], "figures": {)",
                                  R"("num_requests": 0)", R"("num_free": )"});
}

TEST_F(SchedulerBooksTest, AStoreNamesTheRanksThatHaveNotEndedIt) {
  arrive("a", {1, 2, 3});
  schedule("a", {1, 2, 3}, 0, 12);
  const StepPlan plan = this->plan();
  expect_named(list("requests"), {R"("id": "a", "status": "idle", "load": 0)"});
  expect_named(list("stores"), {R"("status": "sent", "blocks": 3)", R"("silent_ranks": [0, 1])"});
  fold({ends(kRankA, plan)});
  expect_named(list("stores"), {R"("status": "sent")", R"("silent_ranks": [1])"});
  fold({ends(kRankB, plan)});
  EXPECT_EQ(count(engine_->books(), R"("stores": [])"), 1U);
}

TEST_F(SchedulerBooksTest, ALoadSaysHowFarItIs) {
  fill({1, 2, 3}, 1);
  arrive("b", {1, 2, 3, 4});
  ASSERT_EQ(engine_->lookup("b", 0, 17), 12U);
  engine_->on_allocated("b", blocks_of({10, 11, 12}), 12);
  expect_named(list("loads"),
               {R"("id": "b", "status": "begun", "blocks": 3, "plan": 0, "age_ms": 0)"});
  expect_named(list("requests"), {R"("id": "b", "status": "loading")"});
  static_cast<void>(plan());
  expect_named(list("loads"), {R"("status": "sent", "blocks": 3)", R"("silent_ranks": [0, 1])"});
  engine_->on_finished("b");
  expect_named(list("requests"), {R"("id": "b", "status": "ended while loading")"});
}

TEST_F(SchedulerBooksTest, TheOldestAreNamedAndIdsAreText) {
  for (int i = 0; i < 30; ++i) arrive("\"r\\\n" + std::to_string(i), {1});
  const std::string requests = list("requests");
  EXPECT_EQ(count(requests, "\"id\""), kMostInBooks);
  expect_named(requests, {R"("id": "\"r\\?0")", R"("id": "\"r\\?9")"});
  EXPECT_EQ(count(requests, "?10"), 0U);
  engine_->on_finished("\"r\\\n0");
  expect_named(list("requests"), {R"("id": "\"r\\?10")"});
}

}  // namespace
}  // namespace kvferry::connector
