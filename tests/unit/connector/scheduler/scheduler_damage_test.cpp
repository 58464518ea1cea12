// SPDX-License-Identifier: Apache-2.0
// Loads of blocks that are not what was stored.
#include "kvferry/base/error.hpp"

#include "scheduler_fixture.hpp"

#include <cstdio>
#include <set>

namespace kvferry::connector {
namespace {

class SchedulerDamageTest : public SchedulerTest {
 protected:
  SchedulerDamageTest() {
    register_ranks({});
    fill({1, 2, 3, 4}, 0);
  }

  /// A request with keys 1 to 4 loads as much of them as there is into blocks from 40 on.
  StepPlan send(std::string_view id) {
    arrive(id, {1, 2, 3, 4});
    const std::uint32_t num_tokens = engine_->lookup(id, 0, 17).value();
    EXPECT_GT(num_tokens, 0U);
    engine_->on_allocated(id, blocks_of({40, 41, 42, 43}), num_tokens);
    StepPlan step = plan();
    EXPECT_EQ(step.loads.size(), 1U);
    return step;
  }
  [[nodiscard]] static SlotId slot_of(const StepPlan& step, std::size_t block) {
    return step.loads.at(0).parts.at(0).blocks.at(block).slot;
  }
  /// The load's end on a rank that found these slots damaged.
  [[nodiscard]] static StepReport finds_damaged(RankId rank, const StepPlan& step,
                                                const std::vector<SlotId>& slots) {
    StepReport report = ends(rank, step, Outcome::kFailed);
    for (const SlotId slot : slots) {
      report.loads.at(0).damaged.push_back({SlabClassId(0), slot});
    }
    return report;
  }
  /// The first digits of the hash of a key.
  [[nodiscard]] static std::string digits_of(std::uint64_t number) {
    std::string text;
    for (std::size_t i = 0; i < 4; ++i) {
      char digits[3];
      std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned>(hash_of(number)[i]));
      text += digits;
    }
    return text;
  }
  /// The plan that announces the failure of the only load, announced.
  void announce(const std::string& id) {
    const StepPlan step = plan();
    EXPECT_EQ(notified(step), Ids{id});
    EXPECT_EQ(fold_ends(step), Ids{id});
  }
};

TEST_F(SchedulerDamageTest, ADamagedBlockFailsItsLoadAndIsNotFoundAgain) {
  const StepPlan step = send("r");
  const SlotId damaged = slot_of(step, 2);
  EXPECT_EQ(fold({ends(kRankA, step), finds_damaged(kRankB, step, {damaged})}), Ids{});
  EXPECT_EQ(view().failed_loads, 1U);
  EXPECT_EQ(view().damaged_blocks, (std::vector<std::uint64_t>{0, 1}));
  EXPECT_EQ(view().tier.num_set_aside, 1U);
  EXPECT_EQ(view().tier.num_leased, 0U);
  announce("r");
  EXPECT_EQ(num_hit({1, 2, 3, 4}), 2U) << "those before it are good";
  EXPECT_EQ(num_hit({1, 2, 9}), 2U);
  const Ids lines = engine_->take_warnings();
  ASSERT_EQ(lines.size(), 1U);
  for (const std::string& part :
       {std::string("rank 1"), std::string("1 of 4 blocks"), std::string("request r"),
        "slot " + std::to_string(damaged.value()), "block " + digits_of(3),
        std::string("KV cache group 0"), std::string("this engine")}) {
    EXPECT_NE(lines[0].find(part), std::string::npos) << part << " is not in: " << lines[0];
  }
  EXPECT_TRUE(engine_->take_warnings().empty());
}

TEST_F(SchedulerDamageTest, ABlockThatWasReadAgainAndIsDamagedIsNotFoundAgain) {
  StepReport report = report_of(kRankB);
  report.scrubbed = {{SlabClassId(0), SlotId(2)}};
  EXPECT_EQ(fold({report}), Ids{});
  EXPECT_EQ(view().damaged_blocks, (std::vector<std::uint64_t>{0, 1}));
  EXPECT_EQ(view().tier.num_set_aside, 1U);
  EXPECT_EQ(num_hit({1, 2, 3, 4}), 2U);
  const Ids lines = engine_->take_warnings();
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_NE(lines[0].find("rank 1 read a block again"), std::string::npos) << lines[0];
  EXPECT_NE(lines[0].find("block " + digits_of(3)), std::string::npos) << lines[0];
}

TEST_F(SchedulerDamageTest, WhatWasReadAgainUnderALoadIsLeftToTheLoad) {
  const StepPlan step = send("r");
  StepReport report = report_of(kRankA);
  report.scrubbed = {{SlabClassId(0), slot_of(step, 1)}};
  EXPECT_EQ(fold({report}), Ids{});
  EXPECT_EQ(view().tier.num_set_aside, 0U) << "it is leased";
  EXPECT_EQ(num_hit({1, 2, 3, 4}), 1U);
  EXPECT_EQ(fold({finds_damaged(kRankA, step, {slot_of(step, 1)}), ends(kRankB, step)}), Ids{});
  EXPECT_EQ(view().tier.num_set_aside, 1U);
  announce("r");
}

TEST_F(SchedulerDamageTest, AFreeSlotThatIsDamagedIsNoNews) {
  StepReport report = report_of(kRankA);
  for (std::uint32_t slot = 4; slot < view().tier.num_slots; ++slot) {
    report.scrubbed.push_back({SlabClassId(0), SlotId(slot)});
  }
  ASSERT_FALSE(report.scrubbed.empty());
  EXPECT_EQ(fold({report}), Ids{});
  EXPECT_EQ(view().tier.num_set_aside, 0U);
  EXPECT_TRUE(engine_->take_warnings().empty());
  EXPECT_EQ(num_hit({1, 2, 3, 4}), 4U);
}

TEST_F(SchedulerDamageTest, ASlotThatTheTierDoesNotHaveIsAnError) {
  for (const DamagedSlot found :
       {DamagedSlot{SlabClassId(1), SlotId(0)}, DamagedSlot{SlabClassId(0), SlotId(1U << 30)}}) {
    StepReport report = report_of(kRankA);
    report.scrubbed = {found};
    EXPECT_THROW(fold({report}), ProtocolError);
  }
  EXPECT_EQ(num_hit({1, 2, 3, 4}), 4U);
}

TEST_F(SchedulerDamageTest, ItsSlotIsNeverWrittenAgain) {
  const StepPlan step = send("r");
  const SlotId damaged = slot_of(step, 0);
  fold({finds_damaged(kRankA, step, {damaged}), ends(kRankB, step)});
  announce("r");
  engine_->on_finished("r");
  std::set<SlotId> written;
  for (std::uint64_t round = 1; round < 20; ++round) {
    const std::string id = "s" + std::to_string(round);
    arrive(id, {100 * round, 100 * round + 1, 100 * round + 2});
    schedule(id, {10, 11, 12}, 0, 12);
    const StepPlan stores = plan();
    for (const StoreOrder& order : stores.stores) {
      for (const BlockSlot& pair : order.blocks) written.insert(pair.slot);
    }
    fold_ends(stores);
    engine_->on_finished(id);
  }
  EXPECT_EQ(written.size(), 31U) << "all others, of 32";
  EXPECT_FALSE(written.contains(damaged));
}

// Two requests load one block; each finds out for itself.
TEST_F(SchedulerDamageTest, AnotherLoadOfTheSlotGoesOn) {
  const StepPlan first = send("a");
  const StepPlan second = send("b");
  const SlotId damaged = slot_of(first, 0);
  fold({finds_damaged(kRankA, first, {damaged}), ends(kRankB, first)});
  EXPECT_EQ(view().num_loads_in_flight, 2U);
  EXPECT_EQ(view().tier.num_dying, 1U);
  announce("a");
  fold({finds_damaged(kRankA, second, {damaged}), ends(kRankB, second)});
  announce("b");
  EXPECT_EQ(view().tier.num_set_aside, 1U);
  EXPECT_EQ(view().damaged_blocks, (std::vector<std::uint64_t>{2, 0}));
}

// A rank finds its part damaged; another one fails for a reason that says nothing of the blocks.
TEST_F(SchedulerDamageTest, IfAnotherRankFailedOtherwiseAllKeysAreForgotten) {
  const StepPlan step = send("r");
  fold({finds_damaged(kRankA, step, {slot_of(step, 3)}), ends(kRankB, step, Outcome::kFailed)});
  announce("r");
  EXPECT_EQ(num_hit({1, 2, 3, 4}), 0U);
  EXPECT_EQ(view().tier.num_set_aside, 1U);
}

TEST_F(SchedulerDamageTest, ItIsWithdrawnBeforeTheOtherRanksHaveEnded) {
  const StepPlan step = send("r");
  fold({finds_damaged(kRankB, step, {slot_of(step, 1)})});
  EXPECT_EQ(num_hit({1, 2, 3, 4}), 1U);
  EXPECT_EQ(view().num_loads_in_flight, 1U);
  fold({ends(kRankA, step)});
  announce("r");
}

TEST_F(SchedulerDamageTest, SlotsThatTheLoadDoesNotReadAreRefused) {
  const StepPlan step = send("r");
  const SlotId own = slot_of(step, 0);
  for (const std::vector<SlotId>& slots :
       {std::vector{SlotId(31)}, std::vector{SlotId(0xffffffffU)}, std::vector{own, own}}) {
    EXPECT_THROW(fold({finds_damaged(kRankA, step, slots)}), ProtocolError);
  }
  StepReport other_class = finds_damaged(kRankA, step, {own});
  other_class.loads[0].damaged[0].slab_class = SlabClassId(1);
  EXPECT_THROW(fold({other_class}), ProtocolError);
  EXPECT_EQ(view().damaged_blocks, (std::vector<std::uint64_t>{0, 0}));
  EXPECT_EQ(num_hit({1, 2, 3, 4}), 4U) << "nothing has changed";
  EXPECT_EQ(fold({ends(kRankA, step), ends(kRankB, step)}), Ids{"r"});
  // Of a load that has ended anything may be said: it is late.
  EXPECT_NO_THROW(fold({finds_damaged(kRankA, step, {own})}));
  EXPECT_EQ(view().stale_reports, 1U);
  EXPECT_EQ(num_hit({1, 2, 3, 4}), 4U);
}

class SchedulerTrustTest : public SchedulerDamageTest {
 protected:
  /// A load whose last block a rank finds damaged. It is stored anew then.
  void damage(const std::string& id, RankId rank = kRankA) {
    const StepPlan step = send(id);
    const SlotId damaged = step.loads[0].parts[0].blocks.back().slot;
    const RankId other = rank == kRankA ? kRankB : kRankA;
    fold({finds_damaged(rank, step, {damaged}), ends(other, step)});
    announce(id);
    engine_->on_finished(id);
  }
};

TEST_F(SchedulerTrustTest, ThreeDamagedLoadsInARowOfOneRankEndTheTiersService) {
  damage("a");
  damage("b");
  EXPECT_GT(num_hit({1, 2, 3, 4}), 0U);
  static_cast<void>(engine_->take_warnings());
  damage("c");
  const Ids lines = engine_->take_warnings();
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_NE(lines[1].find("3 loads in a row of rank 0"), std::string::npos) << lines[1];
  EXPECT_NE(lines[1].find("finds and stores nothing from now on"), std::string::npos) << lines[1];
  EXPECT_EQ(num_hit({1, 2, 3, 4}), 0U);
  arrive("s", {50, 51});
  schedule("s", {10, 11}, 0, 8);
  EXPECT_TRUE(plan().stores.empty());
  EXPECT_EQ(view().num_backlog, 0U);
  EXPECT_TRUE(engine_->take_warnings().empty()) << "it is said once";
}

TEST_F(SchedulerTrustTest, AGoodLoadBetweenThemOrDamageOfAnotherRankDoesNot) {
  damage("a");
  damage("b");
  fold_ends(send("good"));
  damage("c");
  EXPECT_EQ(num_hit({1, 2, 3, 4}), 1U);
  restart();
  register_ranks({});
  fill({1, 2, 3, 4}, 0);
  damage("d");
  damage("e", kRankB);
  damage("f");
  EXPECT_EQ(num_hit({1, 2, 3, 4}), 1U);
}

TEST_F(SchedulerDamageTest, OrdersNameTheBlocksByNumber) {
  const StepPlan load = send("r");
  fold_ends(load);
  engine_->on_finished("r");
  // The same keys, stored in another life of the tier.
  restart();
  register_ranks({});
  arrive("s", {1, 2, 3, 4});
  schedule("s", {0, 1, 2, 3}, 0, 16);
  const StepPlan store = plan();
  std::set<std::uint64_t> identities;
  for (std::size_t i = 0; i < 4; ++i) {
    const std::uint64_t identity = store.stores.at(0).blocks.at(i).identity;
    EXPECT_EQ(identity, key_of(i + 1).mixed());
    EXPECT_EQ(identity, load.loads[0].parts[0].blocks.at(i).identity);
    identities.insert(identity);
  }
  EXPECT_EQ(identities.size(), 4U);
  fold_ends(store);
}

// A flipped bit in a prompt that many requests share.
TEST_F(SchedulerTrustTest, OneDamagedBlockThatSeveralRequestsLoadIsOneAccident) {
  std::vector<StepPlan> steps;
  for (const char* const id : {"a", "b", "c", "d"}) steps.push_back(send(id));
  const SlotId damaged = slot_of(steps[0], 3);
  for (const StepPlan& step : steps) {
    ASSERT_EQ(slot_of(step, 3), damaged);
    fold({finds_damaged(kRankA, step, {damaged}), ends(kRankB, step)});
  }
  EXPECT_EQ(view().damaged_blocks, (std::vector<std::uint64_t>{4, 0}));
  EXPECT_EQ(num_hit({1, 2, 3, 4}), 3U) << "the tier still serves";
}

}  // namespace
}  // namespace kvferry::connector
