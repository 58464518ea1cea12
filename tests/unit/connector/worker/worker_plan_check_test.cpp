// SPDX-License-Identifier: Apache-2.0
// Plans that can be read and contradict themselves, or what is under way: a rank refuses them
// whole, and takes the right one afterwards.
#include "worker_fixture.hpp"

namespace kvferry::connector {
namespace {

class WorkerPlanCheckTest : public WorkerTest {
 protected:
  /// The next plan with these; the one after it has the same number if this one is refused.
  [[nodiscard]] StepPlan plan_with(std::vector<StoreOrder> stores, std::vector<LoadOrder> loads,
                                   std::vector<TransferId> cancels = {},
                                   std::vector<FailureNotice> notices = {}) const {
    StepPlan plan;
    plan.domain = kDomain;
    plan.seq = seq_.next();
    plan.stores = std::move(stores);
    plan.loads = std::move(loads);
    plan.cancels = std::move(cancels);
    plan.notices = std::move(notices);
    return plan;
  }
  /// A plan that stores and loads is taken, and ends, as if nothing had been refused before.
  void expect_right_one_taken() {
    const std::size_t num_stores = report_.stores.size();
    const std::size_t num_loads = report_.loads.size();
    StepPlan plan = next_plan();
    plan.stores.push_back(store(1001, pairs(1, 1, 2), StoreReadiness::kNow));
    plan.loads.push_back(load(1002, pairs(5, 5, 2)));
    bind_and_save(plan);
    collect_ends(num_stores + 1, num_loads + 1);
    EXPECT_EQ(report_.stores.back().outcome, Outcome::kDone);
    EXPECT_EQ(report_.loads.back().outcome, Outcome::kDone);
  }
};

TEST_F(WorkerPlanCheckTest, ATransferWithoutANumberIsRefused) {
  expect_refused(plan_with({store(0, pairs(0, 0, 1))}, {}), {"transfer 0", "1 or more"});
  expect_refused(plan_with({}, {load(0, pairs(0, 0, 1))}), {"transfer 0"});
  expect_refused(plan_with({}, {load(0, {})}), {"transfer 0"});
  expect_refused(plan_with({}, {}, {TransferId(0)}), {"cancels transfer 0"});
  expect_refused(plan_with({}, {}, {}, {{TransferId(0), "r"}}), {"notice of transfer 0"});
  expect_right_one_taken();
}

TEST_F(WorkerPlanCheckTest, ATransferThatIsNamedTwiceIsRefused) {
  expect_refused(plan_with({store(3, pairs(0, 0, 1)), store(3, pairs(1, 1, 1))}, {}),
                 {"transfer 3 twice", "once"});
  expect_refused(plan_with({}, {load(3, pairs(0, 0, 1)), load(3, pairs(1, 1, 1))}),
                 {"transfer 3 twice"});
  expect_refused(plan_with({store(3, pairs(0, 0, 1))}, {load(3, pairs(1, 1, 1))}),
                 {"transfer 3 twice"});
  expect_right_one_taken();
}

TEST_F(WorkerPlanCheckTest, ATransferThatIsUnderWayIsRefusedUntilItHasEnded) {
  valve_.hold(Kind::kCopyH2D);
  StepPlan first = next_plan();
  first.loads.push_back(load(3, pairs(0, 0, 1)));
  bind_and_save(first);
  expect_refused(plan_with({}, {load(3, pairs(1, 1, 1))}), {"transfer 3", "under way"});
  expect_refused(plan_with({store(3, pairs(1, 1, 1))}, {}), {"transfer 3", "under way"});
  valve_.open(Kind::kCopyH2D);
  collect_ends(0, 1);
  expect_right_one_taken();
}

TEST_F(WorkerPlanCheckTest, AStoreThatWasBoundAndNotSavedIsUnderWay) {
  StepPlan first = next_plan();
  first.stores.push_back(store(3, pairs(0, 0, 1)));
  bind(first);
  ASSERT_TRUE(engine_->waiting());
  const std::string bytes = encode(plan_with({store(3, pairs(1, 1, 1))}, {}));
  EXPECT_THROW(engine_->bind(std::as_bytes(std::span(bytes)), 0), ProtocolError);
  EXPECT_TRUE(engine_->waiting()) << "what was refused changes nothing";
  engine_->save(0);
  collect_ends(1, 0);
  expect_right_one_taken();
}

TEST_F(WorkerPlanCheckTest, ASlotIsStoredIntoOnce) {
  expect_refused(plan_with({store(3, {{BlockId(0), SlotId(7)}, {BlockId(1), SlotId(7)}})}, {}),
                 {"stores into slot 7 of slab class 0 twice"});
  expect_refused(plan_with({store(3, pairs(0, 7, 1)), store(4, pairs(1, 7, 1))}, {}),
                 {"stores into slot 7 of slab class 0 twice"});
  expect_right_one_taken();
}

TEST_F(WorkerPlanCheckTest, ABlockIsLoadedIntoOnce) {
  expect_refused(plan_with({}, {load(3, {{BlockId(9), SlotId(0)}, {BlockId(9), SlotId(1)}})}),
                 {"loads into block 9 twice"});
  expect_refused(plan_with({}, {load(3, pairs(9, 0, 1)), load(4, pairs(9, 1, 1))}),
                 {"loads into block 9 twice"});
  expect_right_one_taken();
}

TEST_F(WorkerPlanCheckTest, WhatAStepWritesItDoesNotRead) {
  expect_refused(plan_with({store(3, pairs(0, 7, 1))}, {load(4, pairs(1, 7, 1))}),
                 {"reads and writes slot 7", "one of the two"});
  expect_refused(plan_with({store(3, pairs(9, 0, 1))}, {load(4, pairs(9, 1, 1))}),
                 {"reads and writes block 9"});
  expect_right_one_taken();
}

TEST_F(WorkerPlanCheckTest, TwoLoadsMayReadOneSlot) {
  StepPlan plan = next_plan();
  plan.loads = {load(3, pairs(0, 7, 1)), load(4, pairs(1, 7, 1))};
  bind_and_save(plan);
  collect_ends(0, 2);
}

TEST_F(WorkerPlanCheckTest, ANoticeComesOnceUntilItWasAnnounced) {
  expect_refused(plan_with({}, {}, {}, {{TransferId(3), "r"}, {TransferId(4), "r"}}),
                 {"two notices of request r"});
  expect_refused(plan_with({}, {}, {}, {{TransferId(3), "r"}, {TransferId(3), "s"}}),
                 {"two notices of transfer 3"});
  StepPlan first = next_plan();
  first.notices.push_back({TransferId(3), "r"});
  bind_and_save(first);
  const std::string bytes = encode(plan_with({}, {}, {}, {{TransferId(4), "r"}}));
  EXPECT_THROW(engine_->bind(std::as_bytes(std::span(bytes)), 0), ProtocolError);
  EXPECT_EQ(engine_->collect(), std::vector<std::string>{"r"});
  StepPlan again = next_plan();
  again.notices.push_back({TransferId(4), "r"});
  bind_and_save(again);
  EXPECT_EQ(engine_->collect(), std::vector<std::string>{"r"});
}

TEST_F(WorkerPlanCheckTest, CancelsOfWhatHasEndedOrNeverWasChangeNothing) {
  StepPlan plan = next_plan();
  plan.cancels = {TransferId(77), TransferId(77)};
  bind_and_save(plan);
  expect_right_one_taken();
}

TEST_F(WorkerPlanCheckTest, AChunkHasSlotsOfOneClass) {
  start({.num_slots = 8, .slots_per_chunk = {2, 4}});
  StoreOrder wide = store(3, pairs(0, 2, 1));
  StoreOrder narrow = store(4, pairs(1, 4, 1));
  narrow.slab_class = SlabClassId(1);
  expect_refused(plan_with({wide, narrow}, {}), {"two slab classes in chunk 1"});
  LoadOrder read = load(5, {});
  read.parts.push_back({SlabClassId(1), pairs(1, 4, 1)});
  expect_refused(plan_with({wide}, {read}), {"two slab classes in chunk 1"});
  narrow.blocks = pairs(1, 8, 1);
  StepPlan right = next_plan();
  right.stores = {wide, narrow};
  bind_and_save(right);
  collect_ends(2, 0);
}

}  // namespace
}  // namespace kvferry::connector
