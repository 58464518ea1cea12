// SPDX-License-Identifier: Apache-2.0
// What becomes ready of a rank's arena while the engine serves (G9).
#include "kvferry/base/error.hpp"
#include "kvferry/base/test_hooks.hpp"
#include "kvferry/connector/worker/worker_engine.hpp"

#include "worker_fixture.hpp"

#include <gtest/gtest.h>

namespace kvferry::connector {
namespace {

class WorkerGrowthTest : public WorkerTest {
 protected:
#ifdef KVFERRY_TEST_HOOKS
  ~WorkerGrowthTest() override { test_hooks::reset(); }
#endif

  /// An arena of whole pages; one page becomes ready at a time.
  static constexpr std::uint64_t kPage = 4096;
  static constexpr std::uint32_t kSlotsPerPiece = kPage / 128;
  static constexpr std::uint32_t kManySlots = 8 * kSlotsPerPiece;

  void start_growing(Setup setup) {
    setup.num_slots = kManySlots;
    setup.arena.pinned_piece_bytes = kPage;
    start(setup);
  }
  /// Steps until the rank says so many slots.
  void step_until_ready(std::uint32_t num_slots) {
    std::uint32_t last = 0;
    await([&] {
      bind_and_save(next_plan());
      static_cast<void>(engine_->collect());
      const StepReport report = take_report();
      if (report.topology) last = report.topology->num_chunks;
      if (report.num_ready_chunks) {
        EXPECT_GT(*report.num_ready_chunks, last);
        last = *report.num_ready_chunks;
      }
      return last >= num_slots;
    });
    EXPECT_EQ(last, engine_->num_slots());
  }
};

TEST_F(WorkerGrowthTest, APieceIsReadyAtOnceAndTheRestIsReportedAsItComes) {
  start_growing({});
  EXPECT_GE(engine_->num_slots(), kSlotsPerPiece);
  EXPECT_EQ(engine_->max_slots(), kManySlots);
  step_until_ready(kManySlots);
  EXPECT_NE(engine_->arena_text().find("256 of 256 slots are ready"), std::string::npos)
      << engine_->arena_text();
}

TEST_F(WorkerGrowthTest, ASlotThatWasNotReportedCannotBeInAPlan) {
  start_growing({.pinning_bandwidth_limit = 1});
  ASSERT_LT(engine_->num_slots(), kManySlots);
  StepPlan plan = next_plan();
  plan.stores.push_back(store(1, pairs(0, kManySlots - 2, 2)));
  EXPECT_THROW(bind(plan), ProtocolError);
}

TEST_F(WorkerGrowthTest, ClosesInTheMiddle) {
  start_growing({.pinning_bandwidth_limit = 1});
  bind_and_save(next_plan());
  engine_->close();
  EXPECT_LT(engine_->num_slots(), kManySlots);
}

TEST_F(WorkerGrowthTest, TheFirstPieceServesWhileTheRestIsToCome) {
  start_growing({.pinning_bandwidth_limit = 1});
  write(3, 7);
  StepPlan plan = next_plan();
  plan.stores.push_back(store(1, pairs(3, 5, 1)));
  bind_and_save(plan);
  collect_ends(1, 0);
  write(3, 8);
  plan = next_plan();
  plan.loads.push_back(load(2, pairs(3, 5, 1)));
  bind_and_save(plan);
  collect_ends(1, 1);
  expect_content(3, 7);
}

#ifdef KVFERRY_TEST_HOOKS
TEST_F(WorkerGrowthTest, AShortageIsAnErrorOfTheNextStepThatNamesTheRank) {
  test_hooks::fail_nth_of("arena.populate", 3);
  start_growing({});
  std::string said;
  await([&] {
    try {
      static_cast<void>(engine_->collect());
    } catch (const ResourceError& error) {
      said = error.what();
    }
    return !said.empty();
  });
  EXPECT_NE(said.find("rank 1 has"), std::string::npos) << said;
  EXPECT_NE(said.find("allow_smaller_tier"), std::string::npos) << said;
}

TEST_F(WorkerGrowthTest, AShortageIsASmallerArenaWhereThatIsAllowed) {
  // Each piece of chunks is followed by its tags.
  test_hooks::fail_nth_of("arena.populate", 5);
  start_growing({.arena = {.shortage = cpu_tier::Shortage::kTakeLess}});
  await([&] { return engine_->arena_text().find("no more: ") != std::string::npos; });
  bind_and_save(next_plan());
  EXPECT_NO_THROW(static_cast<void>(engine_->collect()));
  EXPECT_EQ(engine_->num_slots(), 2 * kSlotsPerPiece);
}

TEST_F(WorkerGrowthTest, WhenNotEvenTheFirstPieceCanBeHadNothingStarts) {
  test_hooks::fail_nth_of("arena.register", 1);
  EXPECT_THROW(start_growing({.arena = {.shortage = cpu_tier::Shortage::kTakeLess}}), Error);
}
#endif

TEST_F(WorkerGrowthTest, ANodeThatThereIsNotIsRefused) {
  EXPECT_THROW(start_growing({.numa_node = 4000}), ConfigError);
}

}  // namespace
}  // namespace kvferry::connector
