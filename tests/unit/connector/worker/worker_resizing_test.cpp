// SPDX-License-Identifier: Apache-2.0
// A rank gives chunks of its memory back to the machine and has them again, while it serves.
#include "kvferry/base/error.hpp"
#include "kvferry/base/test_hooks.hpp"
#include "kvferry/connector/worker/worker_engine.hpp"

#include "worker_fixture.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <iterator>
#include <latch>
#include <map>
#include <random>
#include <string>
#include <vector>

namespace kvferry::connector {
namespace {

class WorkerResizingTest : public WorkerTest {
 protected:
  static constexpr std::uint64_t kPage = 4096;
  /// Slots, which are chunks here, of a piece of a page.
  static constexpr std::uint32_t kRun = kPage / 128;
  static constexpr std::uint32_t kRuns = 6;

  WorkerResizingTest() { begin({}); }
#ifdef KVFERRY_TEST_HOOKS
  ~WorkerResizingTest() override { test_hooks::reset(); }
#endif

  void begin(Setup setup, std::uint32_t num_first = kRuns) {
    setup.num_slots = kRuns * kRun;
    setup.arena.pinned_piece_bytes = kPage;
    setup.arena.pages = cpu_tier::PageKind::kNormal;
    setup.arena.start_chunks = num_first * kRun;
    start(setup);
    await([&] {
      step(next_plan());
      return num_ready_ == num_first * kRun;
    });
  }
  /// Binds, saves and collects once into `ended_`, too.
  void step(const StepPlan& plan) {
    bind_and_save(plan);
    static_cast<void>(engine_->collect());
    const StepReport report = take_report();
    if (report.topology) {
      topology_ = *report.topology;
      num_ready_ = report.topology->num_chunks;
    }
    num_ready_ = report.num_ready_chunks.value_or(num_ready_);
    ended_.insert(ended_.end(), report.chunks.begin(), report.chunks.end());
    report_.stores.insert(report_.stores.end(), report.stores.begin(), report.stores.end());
    report_.loads.insert(report_.loads.end(), report.loads.begin(), report.loads.end());
  }
  static ChunkOrder order(std::uint32_t run, ChunkChange change, std::uint32_t num_runs = 1) {
    return {ChunkId(run * kRun), num_runs * kRun, change};
  }
  void tell(const std::vector<ChunkOrder>& orders) {
    StepPlan plan = next_plan();
    plan.chunks = orders;
    step(plan);
  }
  void await_ended(std::size_t count) {
    await([&] {
      step(next_plan());
      return ended_.size() >= count;
    });
    EXPECT_EQ(ended_.size(), count);
  }
  void store_at(std::uint64_t transfer, std::uint32_t block, std::uint32_t slot) {
    StepPlan plan = next_plan();
    plan.stores.push_back(store(transfer, pairs(block, slot, 1)));
    const std::size_t before = report_.stores.size();
    step(plan);
    await([&] {
      step(next_plan());
      return report_.stores.size() > before;
    });
    EXPECT_EQ(report_.stores.back().outcome, Outcome::kDone);
  }
  void load_at(std::uint64_t transfer, std::uint32_t block, std::uint32_t slot) {
    StepPlan plan = next_plan();
    plan.loads.push_back(load(transfer, pairs(block, slot, 1)));
    const std::size_t before = report_.loads.size();
    step(plan);
    await([&] {
      step(next_plan());
      return report_.loads.size() > before;
    });
    EXPECT_EQ(report_.loads.back().outcome, Outcome::kDone);
  }
  void expect_slot_refused(std::uint32_t slot) {
    StepPlan plan = next_plan();
    plan.stores.push_back(store(999, pairs(0, slot, 1)));
    expect_refused(plan, {"slot " + std::to_string(slot)});
    seq_ = PlanSeq(seq_.value() - 1);
  }

  RankTopology topology_;
  std::uint32_t num_ready_ = 0;
  std::vector<ChunkEnded> ended_;
};

TEST_F(WorkerResizingTest, SaysHowItsMemoryComesAndGoes) {
  EXPECT_EQ(topology_.chunks_per_piece, kRun);
  EXPECT_EQ(topology_.first_chunks, kRuns * kRun);
  begin({}, 2);
  EXPECT_EQ(topology_.first_chunks, 2 * kRun);
  EXPECT_EQ(topology_.max_chunks, kRuns * kRun);
  EXPECT_EQ(engine_->num_slots(), 2 * kRun);
  EXPECT_EQ(engine_->max_slots(), 2 * kRun);
}

TEST_F(WorkerResizingTest, GivesBackAndSaysSoAndTakesNoPlanForWhatIsGone) {
  tell({order(1, ChunkChange::kRetire), order(4, ChunkChange::kRetire, 2)});
  expect_slot_refused(kRun);
  await_ended(2);
  EXPECT_EQ(ended_.at(0).order, order(1, ChunkChange::kRetire));
  EXPECT_EQ(ended_.at(1).failure, "");
  EXPECT_EQ(engine_->num_slots(), 3 * kRun);
  expect_slot_refused(2 * kRun - 1);
  expect_slot_refused(6 * kRun - 1);
  write(3, 7);
  store_at(1, 3, 2 * kRun);
  write(3, 8);
  load_at(2, 3, 2 * kRun);
  expect_content(3, 7);
}

TEST_F(WorkerResizingTest, WhatItHasAgainServes) {
  write(3, 7);
  store_at(1, 3, kRun + 5);
  tell({order(1, ChunkChange::kRetire)});
  await_ended(1);
  tell({order(1, ChunkChange::kRestore)});
  if (ended_.size() == 1) expect_slot_refused(kRun + 5);
  await_ended(2);
  EXPECT_EQ(engine_->num_slots(), kRuns * kRun);
  load_at(2, 4, kRun + 5);
  EXPECT_EQ(*at(4, 0), 0) << "what was given back is gone";
  store_at(3, 3, kRun + 5);
  load_at(4, 4, kRun + 5);
  expect_content(4, 7);
}

TEST_F(WorkerResizingTest, GrowsBeyondItsStart) {
  begin({}, 2);
  expect_slot_refused(3 * kRun);
  tell({order(3, ChunkChange::kRestore)});
  await_ended(1);
  EXPECT_EQ(engine_->num_slots(), 3 * kRun);
  write(3, 7);
  store_at(1, 3, 3 * kRun);
  load_at(2, 4, 3 * kRun);
  expect_content(4, 7);
  expect_slot_refused(2 * kRun);
}

TEST_F(WorkerResizingTest, OfAPieceThatIsLargerThanARunNothingGoesWhileAPartIsInUse) {
  const ChunkOrder half{ChunkId(0), kRun / 2, ChunkChange::kRetire};
  const ChunkOrder other{ChunkId(kRun / 2), kRun / 2, ChunkChange::kRetire};
  write(3, 7);
  store_at(1, 3, kRun - 1);
  tell({half});
  await_ended(1);
  EXPECT_EQ(engine_->num_slots(), kRuns * kRun);
  expect_slot_refused(0);
  load_at(2, 4, kRun - 1);
  expect_content(4, 7);
  tell({other});
  await_ended(2);
  EXPECT_EQ(engine_->num_slots(), (kRuns - 1) * kRun);
  tell({{ChunkId(0), kRun / 2, ChunkChange::kRestore}});
  await_ended(3);
  EXPECT_EQ(engine_->num_slots(), kRuns * kRun);
  expect_slot_refused(kRun - 1);
  store_at(5, 3, 0);
}

TEST_F(WorkerResizingTest, RefusesOrdersThatCannotBe) {
  const auto refuse = [this](const std::vector<ChunkOrder>& orders, const std::string& why) {
    StepPlan plan = next_plan();
    plan.chunks = orders;
    expect_refused(plan, {why});
    seq_ = PlanSeq(seq_.value() - 1);
  };
  refuse({order(kRuns, ChunkChange::kRetire)}, "it has " + std::to_string(kRuns * kRun));
  refuse({{ChunkId(1), 0xffffffffU, ChunkChange::kRetire}}, "it has ");
  refuse({{ChunkId(1), 0, ChunkChange::kRetire}}, "it has ");
  refuse({order(1, ChunkChange::kRetire, 2), order(2, ChunkChange::kRetire)}, "another order");
  StepPlan plan = next_plan();
  plan.stores.push_back(store(1, pairs(0, kRun, 1)));
  plan.chunks = {order(1, ChunkChange::kRetire)};
  expect_refused(plan, {"the same plan names slots of them"});
}

TEST_F(WorkerResizingTest, ACopyThatRunsElsewhereGoesOnBesideIt) {
  write(3, 7);
  store_at(1, 3, 0);
  valve_.hold(Kind::kCopyH2D);
  StepPlan plan = next_plan();
  plan.loads.push_back(load(2, pairs(4, 0, 1)));
  plan.chunks = {order(1, ChunkChange::kRetire)};
  step(plan);
  await_ended(1);
  EXPECT_TRUE(report_.loads.empty());
  valve_.open_all();
  await([&] {
    step(next_plan());
    return report_.loads.size() == 1;
  });
  expect_content(4, 7);
}

/// Orders for runs that divide pieces, as ranks of uneven pipeline stages get them. Orders for both
/// runs of a piece are under way at once, and stores and loads go on in every run that is in use.
class RunsThatDividePieces : public WorkerResizingTest,
                             public ::testing::WithParamInterface<std::uint64_t> {};

TEST_P(RunsThatDividePieces, KeepWhatIsInUse) {
  constexpr std::uint32_t kChunks = 3 * kRun / 2;
  struct Run {
    bool is_in_use = true;
    bool is_changing = false;
    std::map<std::uint32_t, std::uint8_t> stored;  // By slot.
  };
  std::vector<Run> all(kRuns * kRun / kChunks);
  std::mt19937_64 random(GetParam());
  const auto below = [&random](std::size_t most) {
    return static_cast<std::uint32_t>(random() % most);
  };
  std::size_t num_ended = 0;
  for (std::uint64_t transfer = 1; transfer < 2000 && !HasFailure(); ++transfer) {
    for (; num_ended < ended_.size(); ++num_ended) {
      const ChunkEnded& ended = ended_[num_ended];
      EXPECT_EQ(ended.failure, "");
      Run& run = all.at(ended.order.first.value() / kChunks);
      run.is_changing = false;
      run.is_in_use = ended.order.change == ChunkChange::kRestore;
    }
    const std::uint32_t number = below(all.size());
    Run& run = all[number];
    const std::uint32_t slot = number * kChunks + below(kChunks);
    if (run.is_changing) {
      step(next_plan());
    } else if (!run.is_in_use || below(4) == 0) {
      tell({{ChunkId(number * kChunks), kChunks,
             run.is_in_use ? ChunkChange::kRetire : ChunkChange::kRestore}});
      run.is_changing = true;
      run.stored.clear();
    } else if (run.stored.empty() || below(2) == 0) {
      run.stored[slot] = static_cast<std::uint8_t>(random());
      write(3, run.stored[slot]);
      store_at(transfer, 3, slot);
    } else {
      const auto& [from, value] = *std::next(run.stored.begin(), below(run.stored.size()));
      load_at(transfer, 4, from);
      expect_content(4, value);
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Seeds, RunsThatDividePieces, ::testing::Range<std::uint64_t>(0, 20));

TEST_F(WorkerResizingTest, EndsWithAnOrderUnderWay) {
  tell({order(1, ChunkChange::kRetire, 3)});
  engine_->close();
}

#ifdef KVFERRY_TEST_HOOKS
// Every point between the order and its end: nothing is said of it before the memory is gone, and
// its slots are in no plan.
TEST_F(WorkerResizingTest, AnOrderIsAnsweredOnlyWhenItIsDone) {
  struct Case {
    const char* point;
    ChunkChange change;
  };
  std::size_t num_ended = 0;
  for (const Case& one : {Case{"arena.order", ChunkChange::kRetire},
                          Case{"arena.before_registering_again", ChunkChange::kRestore},
                          Case{"arena.before_unregistering", ChunkChange::kRetire},
                          Case{"arena.order", ChunkChange::kRestore},
                          Case{"arena.before_release", ChunkChange::kRetire}}) {
    std::latch reached(1);
    std::latch go_on(1);
    test_hooks::on_pause(one.point, [&] {
      reached.count_down();
      go_on.wait();
    });
    tell({order(1, one.change)});
    reached.wait();
    for (int i = 0; i < 3; ++i) step(next_plan());
    EXPECT_EQ(ended_.size(), num_ended) << one.point;
    expect_slot_refused(kRun);
    StepPlan again = next_plan();
    again.chunks = {order(
        1, one.change == ChunkChange::kRetire ? ChunkChange::kRestore : ChunkChange::kRetire)};
    expect_refused(again, {"another order"});
    seq_ = PlanSeq(seq_.value() - 1);
    // Others are served meanwhile.
    write(3, static_cast<std::uint8_t>(num_ended + 1));
    store_at(10 * (num_ended + 1), 3, 2 * kRun);
    go_on.count_down();
    await_ended(++num_ended);
    EXPECT_EQ(ended_.back().failure, "") << one.point;
    test_hooks::reset();
  }
}

TEST_F(WorkerResizingTest, AFailureIsSaidAndTheRankServesOn) {
  tell({order(1, ChunkChange::kRetire)});
  await_ended(1);
  test_hooks::fail_nth_of("arena.populate", 1);
  tell({order(1, ChunkChange::kRestore)});
  await_ended(2);
  EXPECT_NE(ended_.back().failure, "");
  expect_slot_refused(kRun);
  // The scheduler side has all ranks retire it again.
  tell({order(1, ChunkChange::kRetire)});
  await_ended(3);
  EXPECT_EQ(ended_.back().failure, "");
  tell({order(1, ChunkChange::kRestore)});
  await_ended(4);
  EXPECT_EQ(engine_->num_slots(), kRuns * kRun);
}
#endif

}  // namespace
}  // namespace kvferry::connector
