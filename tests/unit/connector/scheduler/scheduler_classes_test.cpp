// SPDX-License-Identifier: Apache-2.0
// KV cache groups whose blocks have two sizes.
#include "kvferry/base/error.hpp"

#include "scheduler_groups_fixture.hpp"

#include <algorithm>

namespace kvferry::connector {
namespace {

/// Full attention in slots as large as a chunk, and a window of two blocks, two of which fit into a
/// chunk with a fifth of it left on the first rank.
class SchedulerClassesTest : public SchedulerGroupsTest {
 protected:
  static constexpr SlabClassId kLarge{0};
  static constexpr SlabClassId kSmall{1};

  SchedulerClassesTest() { restart_with_chunks(32); }

  void restart_with_chunks(std::uint32_t num_chunks) {
    groups_ = {{TokenReach(), kLarge}, {TokenReach::window(8), kSmall}};
    classes_ = {{1, {100, 200}}, {2, {40, 90}}};
    restart();
    register_ranks({.num_slots = num_chunks});
  }
  [[nodiscard]] static Blocks stored(const StepPlan& plan, SlabClassId slab_class) {
    Blocks blocks;
    for (const StoreOrder& order : plan.stores) {
      if (order.slab_class != slab_class) continue;
      const Blocks more = block_numbers(order.blocks);
      blocks.insert(blocks.end(), more.begin(), more.end());
    }
    return blocks;
  }
  /// Chunks of each class, and of none.
  [[nodiscard]] std::vector<std::uint32_t> chunks() const {
    const cpu_tier::SlabSnapshot slabs = view().slabs;
    return {slabs.classes[0].num_chunks, slabs.classes[1].num_chunks, slabs.num_free_chunks};
  }
};

TEST_F(SchedulerClassesTest, OrdersNameTheClassOfTheirBlocks) {
  arrive("r", {1, 2, 3});
  schedule("r", {{10, 11, 12}, {20, 21, 22}}, 0, 12);
  const StepPlan step = plan();
  EXPECT_EQ(stored(step, kLarge), (Blocks{10, 11, 12}));
  EXPECT_EQ(stored(step, kSmall), (Blocks{20, 21, 22}));
  fold_ends(step);
  engine_->on_finished("r");
  EXPECT_EQ(view().stored, 6U);
  EXPECT_EQ(view().tier.num_evictable, 6U);

  ASSERT_EQ(ask("again", {1, 2, 3}), 3U);
  allocate("again", {{40, 41, 42}, {0, 51, 52}}, 12);
  EXPECT_EQ(view().tier.num_leased, 5U);
  const StepPlan load = plan();
  ASSERT_EQ(load.loads.size(), 1U);
  ASSERT_EQ(load.loads[0].parts.size(), 2U);
  EXPECT_EQ(load.loads[0].parts[0].slab_class, kLarge);
  EXPECT_EQ(block_numbers(load.loads[0].parts[0].blocks), (Blocks{40, 41, 42}));
  EXPECT_EQ(load.loads[0].parts[1].slab_class, kSmall);
  EXPECT_EQ(block_numbers(load.loads[0].parts[1].blocks), (Blocks{51, 52}));
  EXPECT_EQ(fold_ends(load), Ids{"again"});
  EXPECT_EQ(view().loaded, 5U);
  EXPECT_EQ(view().tier.num_leased, 0U);
}

TEST_F(SchedulerClassesTest, AnyNumberOfSmallBlocksIsPlannedThatTheRingHasBytesFor) {
  groups_ = {{TokenReach(), kLarge, 8}, {TokenReach::window(80), kSmall}};
  classes_ = {{1, {1000, 1000}}, {100, {10, 10}}};
  restart();
  // Nine large blocks at first: the ring and what may drain meanwhile.
  register_ranks({.ring_blocks = 1});
  std::vector<std::uint64_t> keys;
  std::vector<Blocks> tables{{10, 11}, {}};
  for (std::uint32_t i = 0; i < 16; ++i) {
    keys.push_back(1 + i);
    tables[1].push_back(20 + i);
  }
  arrive("r", keys);
  schedule("r", tables, 0, 16 * kBlockTokens);
  const StepPlan step = plan();
  EXPECT_EQ(stored(step, kLarge), tables[0]);
  EXPECT_EQ(stored(step, kSmall), tables[1]);
  EXPECT_EQ(view().num_backlog, 0U);
  fold_ends(step);
  EXPECT_EQ(view().stored, 18U);
}

TEST_F(SchedulerClassesTest, LargeBlocksLeaveTheirRoomInTheRingForNoMoreThanTheirBytes) {
  groups_ = {{TokenReach(), kLarge}, {TokenReach::window(8), kSmall}};
  classes_ = {{1, {1000, 1000}}, {100, {10, 10}}};
  restart();
  register_ranks({.ring_blocks = 1});
  std::vector<std::uint64_t> keys;
  std::vector<Blocks> tables{{}, {}};
  for (std::uint32_t i = 0; i < 14; ++i) {
    keys.push_back(1 + i);
    tables[0].push_back(10 + i);
    tables[1].push_back(30 + i);
  }
  arrive("r", keys);
  schedule("r", tables, 0, 14 * kBlockTokens);
  const StepPlan step = plan();
  // Nine large ones are 9,000 of 9,125 bytes.
  EXPECT_EQ(stored(step, kLarge).size(), 9U);
  EXPECT_EQ(stored(step, kSmall).size(), 12U);
  EXPECT_EQ(view().num_backlog, 5U + 2U);
}

TEST_F(SchedulerClassesTest, WhatNoClassHasCountsAsSlotsOfTheLargest) {
  EXPECT_EQ(engine_->num_slots(), 32U);
  EXPECT_EQ(view().tier.num_slots, 32U);
  EXPECT_EQ(view().wasted_bytes, 0U);
  fill_both({1, 2, 3}, 10);
  EXPECT_EQ(chunks(), (std::vector<std::uint32_t>{3, 2, 27}));
  EXPECT_EQ(view().tier.num_slots, 3U + 4U + 27U);
  EXPECT_EQ(view().tier.num_free, 1U + 27U);
  EXPECT_TRUE(view().tier.conserved());
  EXPECT_EQ(view().wasted_bytes, 2 * 20U);
}

TEST_F(SchedulerClassesTest, AClassThatStarvesGetsChunksOfTheOther) {
  restart_with_chunks(3);
  fill_both({1, 2}, 10);
  EXPECT_EQ(chunks(), (std::vector<std::uint32_t>{2, 1, 0}));
  // Three large blocks, for which all of the memory is needed.
  arrive("r", {3, 4, 5});
  schedule("r", {{30, 31, 32}, {40, 41, 42}}, 0, 12);
  const StepPlan step = plan();
  EXPECT_EQ(stored(step, kLarge), (Blocks{30, 31, 32}));
  EXPECT_EQ(stored(step, kSmall), Blocks{}) << "every chunk has a slot that is being written";
  EXPECT_EQ(view().skipped_exhausted, 3U);
  EXPECT_EQ(chunks(), (std::vector<std::uint32_t>{3, 0, 0}));
  fold_ends(step);
  EXPECT_EQ(view().slabs.classes[0].num_gained_total, 1U);
  EXPECT_EQ(num_hit({1, 2}), 0U);
}

TEST_F(SchedulerClassesTest, EvictionInTheSecondClassAloneMakesAnOldAnswerVoid) {
  restart_with_chunks(4);
  fill_both({1, 2}, 10);
  ASSERT_EQ(ask("r", {1, 2}), 2U);
  // Its large block gets the last free chunk, its small one the slot of another.
  arrive("other", {7});
  schedule("other", {{30}, {31}}, 0, 4);
  fold_ends(plan());
  EXPECT_EQ(engine_->lookup("r", 0, 9), num_hit({1, 2}) * kBlockTokens);
  EXPECT_LT(engine_->lookup("r", 0, 9), 8U);
}

TEST_F(SchedulerClassesTest, ALoadWhoseSecondClassCannotBeHadHoldsNothingOfTheFirst) {
  fill_both({1, 2, 3}, 10);
  ASSERT_EQ(ask("r", {1, 2, 3}), 3U);
  allocate("r", {{40, 41, 42}, {0, 51}}, 12);  // A table too short for the window.
  EXPECT_EQ(view().tier.num_leased, 0U);
  EXPECT_EQ(view().failed_loads, 1U);
  EXPECT_EQ(notified(plan()), Ids{"r"});
}

TEST_F(SchedulerClassesTest, AFailedLoadForgetsItsKeysInEveryClass) {
  fill_both({1, 2, 3}, 10);
  ASSERT_EQ(ask("r", {1, 2, 3}), 3U);
  allocate("r", {{40, 41, 42}, {0, 51, 52}}, 12);
  const StepPlan step = plan();
  fold({ends(kRankA, step), ends(kRankB, step, Outcome::kFailed)});
  EXPECT_EQ(view().tier.num_evictable, 1U) << "the window's first block was not loaded";
  EXPECT_EQ(view().tier.num_leased + view().tier.num_dying, 0U);
}

TEST_F(SchedulerClassesTest, WhatWaitsInTheBacklogIsStoredByClass) {
  restart();
  arrive("r", {1, 2});
  schedule("r", {{10, 11}, {20, 21}}, 0, 8);
  EXPECT_TRUE(plan().stores.empty()) << "no rank has registered";
  register_ranks({});
  for (std::uint32_t i = 0; i < 2; ++i) {
    pool_.cache(10 + i, 1 + i, GroupId(0));
    pool_.cache(20 + i, 1 + i, GroupId(1));
  }
  const StepPlan step = plan();
  ASSERT_EQ(step.stores.size(), 2U);
  for (const StoreOrder& order : step.stores) EXPECT_EQ(order.readiness, StoreReadiness::kNow);
  EXPECT_EQ(stored(step, kLarge), (Blocks{10, 11}));
  EXPECT_EQ(stored(step, kSmall), (Blocks{20, 21}));
  EXPECT_EQ(view().num_backlog, 0U);
}

TEST_F(SchedulerClassesTest, RequestsThatDecodeShareATransferOfEachClass) {
  for (const std::uint32_t i : {0U, 1U}) {
    const std::string id = "r" + std::to_string(i);
    arrive(id, {10 + i});
    schedule(id, {{10 + i}, {20 + i}}, 0, 4);
  }
  const StepPlan step = plan();
  ASSERT_EQ(step.stores.size(), 2U);
  EXPECT_EQ(stored(step, kLarge), (Blocks{10, 11}));
  EXPECT_EQ(stored(step, kSmall), (Blocks{20, 21}));
}

TEST_F(SchedulerClassesTest, ALostRankLeavesSlotsOfBothClassesInQuarantine) {
  arrive("r", {1, 2});
  schedule("r", {{10, 11}, {20, 21}}, 0, 8);
  const StepPlan step = plan();
  fold({ends(kRankA, step)});
  std::string error;
  for (int i = 0; i < 20 && error.empty(); ++i) {
    try {
      static_cast<void>(plan());
      now_ += kRankTimeout;
      fold({});
    } catch (const TimeoutError& timeout) {
      error = timeout.what();
    }
  }
  EXPECT_NE(error.find("4 slots"), std::string::npos) << error;
  EXPECT_EQ(view().tier.num_quarantined, 4U);
  fold({ends(kRankB, step)});
  EXPECT_EQ(view().tier.num_quarantined, 0U);
}

TEST_F(SchedulerClassesTest, AResetEmptiesEveryClass) {
  fill_both({1, 2, 3}, 10);
  engine_->reset_cache();
  EXPECT_EQ(view().tier.num_evictable, 0U);
  EXPECT_EQ(view().tier.num_free, view().tier.num_slots);
}

TEST_F(SchedulerClassesTest, ARankWithOtherClassesIsRefusedWithBoth) {
  const auto complaint = [this](auto spoil) {
    restart();
    StepReport report = topology_report(kRankB, {});
    spoil(report.topology->classes);
    try {
      fold({report});
    } catch (const TopologyError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const auto names = [](const std::string& text, const char* what, const char* other) {
    EXPECT_NE(text.find(what), std::string::npos) << text;
    EXPECT_NE(text.find(other), std::string::npos) << text;
  };
  names(complaint([](auto& classes) { classes.pop_back(); }), "sizes of blocks 1", "told 2");
  names(complaint([](auto& classes) { classes[1].slot_bytes = 91; }), "bytes per block 91",
        "told 90");
  names(complaint([](auto& classes) { classes[1].slots_per_chunk = 1; }), "slots per chunk 1",
        "told 2");
}

}  // namespace
}  // namespace kvferry::connector
