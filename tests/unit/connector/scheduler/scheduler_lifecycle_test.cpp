// SPDX-License-Identifier: Apache-2.0
#include "kvferry/base/error.hpp"

#include "scheduler_fixture.hpp"

namespace kvferry::connector {
namespace {

/// Abort, finish, reuse of ids, preemption, reset and start-up. With keys 1 to 4 in the tier.
class SchedulerLifecycleTest : public SchedulerTest {
 protected:
  SchedulerLifecycleTest() {
    register_ranks({});
    fill({1, 2, 3, 4}, 0);
  }

  void begin(std::string_view id, const Blocks& table = {40, 41, 42, 43}) {
    arrive(id, {1, 2, 3, 4, 5, 6});
    ASSERT_EQ(engine_->lookup(id, 0, 25), 16U);
    engine_->on_allocated(id, blocks_of(table), 16);
  }
  StepPlan send(std::string_view id) {
    begin(id);
    return plan();
  }
};

// G2, dynamo#6681: any number of calls, the same answer, no assertion.
TEST_F(SchedulerLifecycleTest, FinishMayComeAnyNumberOfTimesInAnyState) {
  engine_->on_finished("never seen");
  arrive("waiting", {1});
  const StepPlan step = send("loading");
  arrive("running", {7});
  schedule("running", {50}, 0, 4);
  const StepPlan store = plan();
  for (int i = 0; i < 3; ++i) {
    engine_->on_finished("waiting");
    engine_->on_finished("loading");
    engine_->on_finished("running");
  }
  EXPECT_EQ(view().num_requests, 0U);
  EXPECT_EQ(view().num_tombstones, 1U);
  const StepPlan next = plan();
  ASSERT_EQ(next.cancels.size(), 1U) << "one load, cancelled once";
  EXPECT_EQ(fold_ends(step, Outcome::kCancelled), Ids{"loading"});
  EXPECT_EQ(fold_ends(store), Ids{});
  for (int i = 0; i < 3; ++i) engine_->on_finished("loading");
  EXPECT_TRUE(plan().empty());
  EXPECT_EQ(view().num_tombstones, 0U);
}

// G2: what no rank has seen is released at once.
TEST_F(SchedulerLifecycleTest, AbortOfALoadThatWasNotSentReleasesItsLeaseAtOnce) {
  begin("r");
  EXPECT_EQ(view().tier.num_leased, 4U);
  engine_->on_finished("r");
  EXPECT_EQ(view().tier.num_leased, 0U);
  const StepPlan step = plan();
  EXPECT_TRUE(step.cancels.empty());
  EXPECT_TRUE(step.loads.empty());
  EXPECT_EQ(notified(step), Ids{"r"}) << "the engine waits for it to free the blocks";
  EXPECT_EQ(fold({ends(kRankA, step)}), Ids{});
  EXPECT_EQ(view().num_tombstones, 1U);
  EXPECT_EQ(fold({ends(kRankB, step)}), Ids{"r"});
  EXPECT_EQ(stale_, Ids{});
  EXPECT_EQ(view().num_tombstones, 0U);
  EXPECT_EQ(view().num_loads_in_flight, 0U);
  EXPECT_EQ(view().failed_loads, 0U);
  EXPECT_TRUE(plan().empty());
  EXPECT_EQ(num_hit({1, 2, 3, 4}), 4U);
}

// TensorRT-LLM#15546: blocks and slots were reused under a live copy.
TEST_F(SchedulerLifecycleTest, AbortOfALoadThatWasSentCancelsItAndKeepsItsSlotsUntilItEnds) {
  const StepPlan step = send("r");
  engine_->on_finished("r");
  EXPECT_EQ(view().num_requests, 0U);
  EXPECT_EQ(view().tier.num_leased, 4U);
  const StepPlan next = plan();
  ASSERT_EQ(next.cancels.size(), 1U);
  EXPECT_EQ(next.cancels[0], step.loads[0].transfer);
  EXPECT_EQ(fold({ends(kRankA, step, Outcome::kCancelled)}), Ids{});
  EXPECT_EQ(view().tier.num_leased, 4U);
  EXPECT_EQ(fold({ends(kRankB, step)}), Ids{"r"}) << "the engine waits for it to free the blocks";
  EXPECT_EQ(view().tier.num_leased, 0U);
  EXPECT_TRUE(plan().empty()) << "nobody has to hear how it ended";
  EXPECT_EQ(view().failed_loads, 0U);
  EXPECT_EQ(num_hit({1, 2, 3, 4}), 4U);
}

// vllm#43226, vllm#51637: the completion of an id's earlier life reached the engine.
TEST_F(SchedulerLifecycleTest, TheReportOfAReusedIdsEarlierLoadIsStale) {
  const StepPlan old = send("r");
  engine_->on_finished("r");
  arrive("r", {9});
  EXPECT_EQ(fold_ends(old), Ids{});
  EXPECT_EQ(stale_, Ids{}) << "no rank has announced it";
  EXPECT_EQ(view().stale_reports, 1U);
  EXPECT_EQ(view().num_loads_in_flight, 0U);
  EXPECT_EQ(view().tier.num_leased, 0U);
  EXPECT_TRUE(engine_->knows("r"));
}

TEST_F(SchedulerLifecycleTest, AReusedIdsOwnLoadIsNotEndedByTheEarlierOne) {
  const StepPlan old = send("r");
  engine_->on_finished("r");
  const StepPlan fresh = send("r");
  EXPECT_EQ(fold_ends(old), Ids{});
  EXPECT_EQ(view().num_loads_in_flight, 1U);
  EXPECT_EQ(engine_->lookup("r", 0, 25), 0U) << "it still loads";
  EXPECT_EQ(fold_ends(fresh), Ids{"r"});
  EXPECT_EQ(engine_->lookup("r", 0, 25), 16U);
}

// The engine knows ids only: of two loads of one id that end together, the living one is told.
TEST_F(SchedulerLifecycleTest, AnIdIsToldOnceWhenItsOldAndItsLiveLoadEndInTheSameFold) {
  const StepPlan old = send("r");
  engine_->on_finished("r");
  const StepPlan fresh = send("r");
  EXPECT_EQ(fold({ends(kRankA, old), ends(kRankB, old), ends(kRankA, fresh), ends(kRankB, fresh)}),
            Ids{"r"});
  EXPECT_EQ(stale_, Ids{});
  EXPECT_EQ(view().stale_reports, 1U);
  EXPECT_EQ(view().num_loads_in_flight, 0U);
}

TEST_F(SchedulerLifecycleTest, AnIdThatComesAgainWithoutAFinishReleasesWhatItsEarlierLifeHeld) {
  begin("r");
  arrive("r", {9});
  EXPECT_EQ(view().tier.num_leased, 0U);
  EXPECT_TRUE(plan().empty()) << "its blocks may be anybody's now, and nobody waits for its end";
  EXPECT_EQ(view().num_loads_in_flight, 0U);
  EXPECT_EQ(view().stale_reports, 1U);
  EXPECT_EQ(view().num_requests, 1U);
  EXPECT_EQ(view().num_tombstones, 0U);
}

// vllm#46240: the second report of one transfer asserted in the engine.
TEST_F(SchedulerLifecycleTest, ASecondReportOfALoadIsCountedAndDropped) {
  const StepPlan step = send("r");
  EXPECT_EQ(fold_ends(step), Ids{"r"});
  EXPECT_EQ(fold_ends(step), Ids{});
  EXPECT_EQ(stale_, Ids{});
  EXPECT_EQ(view().stale_reports, 2U);
  EXPECT_EQ(view().loaded, 4U);
}

TEST_F(SchedulerLifecycleTest, AReportOfALoadThatNoRankHasSeenIsCountedAndDropped) {
  begin("r");
  StepReport report = report_of(kRankA);
  for (std::uint64_t id = 1; id < 10; ++id) {
    report.loads.push_back({TransferId(id), Outcome::kDone, ""});
  }
  EXPECT_EQ(fold({report}), Ids{});
  EXPECT_EQ(view().stale_reports, 9U);
  EXPECT_EQ(view().num_loads_in_flight, 1U);
  EXPECT_EQ(fold_ends(plan()), Ids{"r"});
  EXPECT_EQ(view().loaded, 4U);
}

TEST_F(SchedulerLifecycleTest, AReportOfAnotherEngineIsDroppedWhole) {
  restart();
  register_ranks({});
  const std::uint64_t slots = view().tier.num_slots;
  arrive("r", {1});
  schedule("r", {10}, 0, 4);
  StepReport report = ends(kRankA, plan());
  report.domain = DomainId(8);
  report.topology = topology_report(kRankA, {}).topology;
  fold({report});
  EXPECT_EQ(view().stale_reports, 1U);
  EXPECT_EQ(view().num_stores_in_flight, 1U);
  EXPECT_EQ(view().tier.num_slots, slots);
}

TEST_F(SchedulerLifecycleTest, AFoldWithAnUnreadableReportTouchesNoTransfer) {
  const StepPlan step = send("r");
  const std::string good = encode(ends(kRankA, step));
  const std::string bad = good.substr(0, good.size() - 1);
  const std::vector<std::span<const std::byte>> reports = {std::as_bytes(std::span(good)),
                                                           std::as_bytes(std::span(bad))};
  EXPECT_THROW(static_cast<void>(engine_->fold(reports)), ProtocolError);
  EXPECT_EQ(fold_ends(step), Ids{"r"});
  EXPECT_EQ(view().stale_reports, 0U);
}

TEST_F(SchedulerLifecycleTest, AFoldOfARankThatDoesNotExistTouchesNoTransfer) {
  const StepPlan step = send("r");
  EXPECT_THROW(fold({ends(kRankA, step), report_of(RankId(2))}), TopologyError);
  EXPECT_EQ(fold_ends(step), Ids{"r"});
  EXPECT_EQ(view().stale_reports, 0U);
}

TEST_F(SchedulerLifecycleTest, GrowsOnlyWhenEveryRankHasRegisteredAndToTheLeast) {
  restart(/*max_slots=*/64);
  arrive("r", {1, 2});
  schedule("r", {10, 11}, 0, 8);
  pool_.cache(10, 1);
  pool_.cache(11, 2);
  EXPECT_TRUE(plan().stores.empty());
  fold({topology_report(kRankA, {.num_slots = 20, .ring_blocks = 3})});
  EXPECT_EQ(view().ready_ranks, 1U);
  EXPECT_EQ(engine_->max_slots(), 64U);
  EXPECT_EQ(view().tier.num_slots, 0U);
  EXPECT_TRUE(plan().stores.empty());
  fold({topology_report(kRankB, {.num_slots = 10, .ring_blocks = 8, .max_slots = 40})});
  EXPECT_EQ(view().tier.num_slots, 10U);
  EXPECT_EQ(engine_->max_slots(), 40U);
  EXPECT_EQ(block_numbers(plan().stores.at(0).blocks), (Blocks{10, 11}));
}

TEST_F(SchedulerLifecycleTest, GrowsOnAsFarAsEveryRankIsReady) {
  restart(/*max_slots=*/16);
  register_ranks({.num_slots = 2});
  const auto ready = [](RankId rank, std::uint32_t num_slots) {
    StepReport report = report_of(rank);
    report.num_ready_chunks = num_slots;
    return report;
  };
  fold({ready(kRankA, 8)});
  EXPECT_EQ(view().tier.num_slots, 2U);
  fold({ready(kRankB, 5)});
  EXPECT_EQ(view().tier.num_slots, 5U);
  arrive("r", {1, 2, 3, 4});
  schedule("r", {10, 11, 12, 13}, 0, 16);
  EXPECT_EQ(plan().stores.at(0).blocks.size(), 4U);
  fold({ready(kRankA, 30), ready(kRankB, 30)});
  EXPECT_EQ(view().tier.num_slots, 16U);
  EXPECT_EQ(view().tier.num_writable, 4U);
}

TEST_F(SchedulerLifecycleTest, GrowsNoFurtherThanItWasTold) {
  restart(/*max_slots=*/5);
  register_ranks({.num_slots = 20});
  EXPECT_EQ(view().tier.num_slots, 5U);
  EXPECT_EQ(engine_->max_slots(), 5U);
}

TEST_F(SchedulerLifecycleTest, OptionsThatCannotWorkAreRefused) {
  SchedulerOptions good;
  good.domain = kDomain;
  good.world_size = 2;
  good.hash_tokens = 4;
  good.num_blocks = 8;
  good.classes = {{1, {1, 1}}};
  good.max_chunks = 4;
  EXPECT_NO_THROW(SchedulerEngine{good});
  const auto spoilt = [&good](auto spoil) {
    SchedulerOptions options = good;
    spoil(options);
    EXPECT_THROW(SchedulerEngine{options}, ConfigError);
  };
  spoilt([](SchedulerOptions& options) { options.world_size = 0; });
  spoilt([](SchedulerOptions& options) { options.world_size = 3; });
  spoilt([](SchedulerOptions& options) { options.hash_tokens = 0; });
  spoilt([](SchedulerOptions& options) { options.num_blocks = 0; });
  spoilt([](SchedulerOptions& options) { options.max_chunks = 0; });
  spoilt([](SchedulerOptions& options) { options.classes.clear(); });
  spoilt([](SchedulerOptions& options) { options.classes[0].slot_bytes.clear(); });
  spoilt([](SchedulerOptions& options) { options.classes[0].slot_bytes[0] = 0; });
  spoilt([](SchedulerOptions& options) { options.classes[0].slots_per_chunk = 0; });
  spoilt([](SchedulerOptions& options) { options.groups[0].hashes_per_block = 1U << 30U; });
  spoilt([](SchedulerOptions& options) { options.classes.push_back({1, {2, 2}}); });
  spoilt([](SchedulerOptions& options) { options.groups[0].slab_class = SlabClassId(1); });
  spoilt([](SchedulerOptions& options) { options.groups.clear(); });
}

TEST_F(SchedulerLifecycleTest, ResetAbortsStoresInFlightAndFreesTheirSlotsWhenTheRanksEnd) {
  arrive("r", {7, 8});
  schedule("r", {50, 51}, 0, 8);
  const StepPlan step = plan();
  engine_->reset_cache();
  EXPECT_EQ(view().tier.num_aborted, 2U);
  EXPECT_EQ(view().tier.num_evictable, 0U);
  const StepPlan next = plan();
  ASSERT_EQ(next.cancels.size(), 1U);
  EXPECT_EQ(next.cancels[0], step.stores[0].transfer);
  fold({ends(kRankA, step)});
  EXPECT_EQ(view().tier.num_aborted, 2U);
  fold({ends(kRankB, step, Outcome::kCancelled)});
  EXPECT_EQ(view().tier.num_free, 32U);
  EXPECT_EQ(num_hit({7, 8}), 0U);
  EXPECT_EQ(view().failed_stores, 0U);
  EXPECT_EQ(view().stored, 4U) << "those of the fixture";
}

TEST_F(SchedulerLifecycleTest, ResetEmptiesTheBacklogAndSkippedBlocksStayOut) {
  arrive("r", {7, 8});
  schedule("r", {50, 51}, 0, 8);
  pool_.cache(50, 7);
  pool_.cache(51, 8);
  const StepPlan step = plan();
  engine_->reset_cache();
  StepReport report = report_of(kRankA);
  report.gathered.push_back({step.stores[0].transfer, 0});
  fold({report});
  report.rank = kRankB;
  fold({report});
  EXPECT_EQ(view().num_backlog, 0U);
  EXPECT_EQ(view().tier.num_free, 32U);
}

TEST_F(SchedulerLifecycleTest, ResetFailsLoadsThatWereNotSentAndTheyNeverAre) {
  begin("r");
  engine_->reset_cache();
  EXPECT_EQ(view().tier.num_free, 32U);
  const StepPlan step = plan();
  EXPECT_TRUE(step.loads.empty());
  EXPECT_EQ(notified(step), Ids{"r"}) << "the engine waits for it";
  EXPECT_EQ(fold_ends(step), Ids{"r"});
  EXPECT_EQ(view().failed_loads, 1U);
  EXPECT_TRUE(plan().empty());
}

TEST_F(SchedulerLifecycleTest, ResetFailsLoadsInFlightAndKeepsTheirSlotsUntilTheyEnd) {
  const StepPlan step = send("r");
  engine_->reset_cache();
  EXPECT_EQ(view().tier.num_dying, 4U);
  EXPECT_EQ(num_hit({1, 2, 3, 4}), 0U);
  const StepPlan next = plan();
  ASSERT_EQ(next.cancels.size(), 1U);
  EXPECT_EQ(next.cancels[0], step.loads[0].transfer);
  EXPECT_TRUE(next.notices.empty()) << "its blocks may still be written";
  EXPECT_EQ(fold({ends(kRankA, step, Outcome::kCancelled)}), Ids{});
  EXPECT_EQ(view().tier.num_dying, 4U);
  EXPECT_EQ(fold({ends(kRankB, step, Outcome::kCancelled)}), Ids{}) << "no rank has announced it";
  EXPECT_EQ(view().tier.num_free, 32U);
  EXPECT_EQ(fold_ends(plan()), Ids{"r"});
  EXPECT_EQ(view().failed_loads, 1U);
  EXPECT_EQ(engine_->lookup("r", 0, 25), 0U);
}

TEST_F(SchedulerLifecycleTest, ARunningRequestIsNotStoredAfterAResetUntilItIsComputedAnew) {
  arrive("r", {7, 8, 9});
  schedule("r", {50}, 0, 4);
  fold_ends(plan());
  engine_->reset_cache();
  engine_->on_scheduled("r", TableUpdate::kAppend, blocks_of({51, 52}), 4, 8);
  EXPECT_TRUE(plan().stores.empty()) << "the new blocks were computed on the old ones";
  engine_->on_preempted("r");
  schedule("r", {60, 61, 62}, 0, 12);
  EXPECT_EQ(block_numbers(plan().stores.at(0).blocks), (Blocks{60, 61, 62}));
}

TEST_F(SchedulerLifecycleTest, WhatIsComputedOnALoadFromBeforeTheResetIsNotStored) {
  fold_ends(send("r"));
  engine_->reset_cache();
  schedule("r", {40, 41, 42, 43, 44, 45}, 16, 8);
  EXPECT_TRUE(plan().stores.empty());
  engine_->on_finished("r");
  EXPECT_EQ(view().num_backlog, 0U);
}

// Its local blocks were found before the reset, which did not yet see that it has any.
TEST_F(SchedulerLifecycleTest, WhatIsComputedOnBlocksFoundBeforeAResetIsNotStored) {
  arrive("r", {1, 2, 3, 4, 5, 6});
  EXPECT_EQ(engine_->lookup("r", 4, 25), 12U);
  engine_->reset_cache();
  engine_->on_allocated("r", blocks_of({40, 41, 42, 43}), 12);
  fold_ends(plan());
  schedule("r", {40, 41, 42, 43, 44, 45}, 4, 20);
  EXPECT_TRUE(plan().stores.empty());
  engine_->on_preempted("r");
  schedule("r", {40, 41, 42, 43, 44, 45}, 0, 24);
  EXPECT_EQ(plan().stores.at(0).blocks.size(), 6U);
}

TEST_F(SchedulerLifecycleTest,
       ARequestWhoseLoadTheResetFailedIsStoredOnceItIsComputedFromItsStart) {
  const StepPlan step = send("r");
  engine_->reset_cache();
  fold_ends(step, Outcome::kCancelled);
  fold_ends(plan());
  schedule("r", {40, 41, 42, 43, 44, 45}, 0, 24);
  EXPECT_EQ(plan().stores.at(0).blocks.size(), 6U);
}

TEST_F(SchedulerLifecycleTest, AWaitingRequestIsStoredAfterAReset) {
  arrive("r", {7});
  engine_->reset_cache();
  schedule("r", {50}, 0, 4);
  EXPECT_EQ(plan().stores.at(0).blocks.size(), 1U);
}

TEST_F(SchedulerLifecycleTest, MayEndWithEverythingInFlight) {
  send("loading");
  begin("begun", {50, 51, 52, 53});
  arrive("storing", {7, 8});
  schedule("storing", {20, 21}, 0, 8);
  const StepPlan step = plan();
  fold({ends(kRankA, step)});
  engine_->on_finished("loading");
  begin("failed", {52, 53, 54, 55});
  engine_->on_finished("failed");
  fold({ends(kRankA, plan())});  // Announced by one of two ranks.
  engine_.reset();
}

}  // namespace
}  // namespace kvferry::connector
