// SPDX-License-Identifier: Apache-2.0
#include "kvferry/base/error.hpp"

#include "worker_fixture.hpp"

namespace kvferry::connector {
namespace {

/// Plans that do not fit, time-outs, and the end.
class WorkerLifecycleTest : public WorkerTest {
 protected:
  /// Whether everything has ended.
  [[nodiscard]] bool closes() {
    try {
      engine_->close();
      return true;
    } catch (const TimeoutError&) {
      return false;
    }
  }
};

TEST_F(WorkerLifecycleTest, APlanOutOfSequenceIsRefusedAndTheRightOneStillTaken) {
  bind_and_save(next_plan());
  const StepPlan second = next_plan();
  StepPlan wrong = second;
  wrong.seq = PlanSeq(1);
  wrong.notices.push_back({TransferId(9), "r"});
  expect_refused(wrong, {"rank 1", "plan 1 after plan 1"});
  wrong.seq = PlanSeq(3);
  expect_refused(wrong, {"plan 3 after plan 1"});
  bind_and_save(second);
}

TEST_F(WorkerLifecycleTest, APlanOfAnotherEngineIsRefused) {
  bind_and_save(next_plan());
  const StepPlan second = next_plan();
  StepPlan wrong = second;
  wrong.domain = DomainId(6);
  expect_refused(wrong, {"engine 6", "engine 5"});
  bind_and_save(second);
}

TEST_F(WorkerLifecycleTest, APlanThatDoesNotFitThisRankIsRefusedWhole) {
  const StepPlan right = next_plan();
  const auto with_store = [&right](const BlockSlot& pair, SlabClassId slab_class) {
    StepPlan plan = right;
    plan.loads.push_back(load(1, pairs(0, 0, 1)));
    plan.stores.push_back(store(2, pairs(1, 1, 1), StoreReadiness::kNow));
    plan.stores.push_back(store(3, {pair}));
    plan.stores.back().slab_class = slab_class;
    return plan;
  };
  expect_refused(with_store({BlockId(kNumBlocks), SlotId(0)}, SlabClassId(0)),
                 {"transfer 3", "block 32", "32 blocks"});
  expect_refused(with_store({BlockId(0), SlotId(kNumSlots)}, SlabClassId(0)),
                 {"transfer 3", "slot 64", "64 slots"});
  expect_refused(with_store({BlockId(0), SlotId(0)}, SlabClassId(1)),
                 {"transfer 3", "slab class 1"});
  StepPlan bad_load = right;
  bad_load.loads.push_back(load(4, {{BlockId(0), SlotId(kNumSlots)}}));
  expect_refused(bad_load, {"transfer 4", "slot 64"});
  bad_load.loads[0] = load(4, pairs(0, 0, 1));
  bad_load.loads[0].parts[0].slab_class = SlabClassId(2);
  expect_refused(bad_load, {"transfer 4", "slab class 2"});
  bind_and_save(right);
  collect_ends(0, 0);
  EXPECT_EQ(valve_.num_arrived(Kind::kGather), 0U);
}

TEST_F(WorkerLifecycleTest, APlanThatCannotBeReadIsRefused) {
  const std::string bytes = encode(next_plan());
  EXPECT_THROW(engine_->bind(std::as_bytes(std::span(bytes)).first(bytes.size() - 1), 0),
               ProtocolError);
  EXPECT_THROW(engine_->bind({}, 0), ProtocolError);
  engine_->bind(std::as_bytes(std::span(bytes)), 0);
}

TEST_F(WorkerLifecycleTest, AnOverdueTransferIsAnErrorThatNamesItAndIsNeverReported) {
  start({.transfer_timeout = std::chrono::nanoseconds(0)});
  valve_.hold(Kind::kCopyH2D);
  StepPlan plan = next_plan();
  plan.loads.push_back(load(123, pairs(0, 0, 1)));
  bind_and_save(plan);
  await([this] { return valve_.num_arrived(Kind::kCopyH2D) == 1; });
  try {
    static_cast<void>(engine_->collect());
    ADD_FAILURE() << "no TimeoutError";
  } catch (const TimeoutError& error) {
    const std::string message = error.what();
    EXPECT_NE(message.find("rank 1: load 123 "), std::string::npos) << message;
    EXPECT_NE(message.find("transfer_timeout_s"), std::string::npos) << message;
  }
  EXPECT_TRUE(take_report().loads.empty());
  // Its end would wait for nothing, either.
  valve_.open_all();
  await([this] { return closes(); });
}

// LMCache#5263: close() while something still writes; LMCache#4342: one completion each, also when
// close() comes.
TEST_F(WorkerLifecycleTest, CloseWaitsForWhatRunsAndEverythingEndsOnce) {
  start({.in_flight_blocks = 1, .transfer_timeout = std::chrono::nanoseconds(0)});
  valve_.hold(Kind::kCopyH2D);
  valve_.hold(Kind::kCopyD2H);
  StepPlan plan = next_plan();
  plan.stores.push_back(store(1, pairs(0, 0, 3)));
  plan.loads.push_back(load(2, pairs(10, 10, 3)));
  plan.loads.push_back(load(3, pairs(20, 20, 3)));
  bind_and_save(plan);
  await([this] {
    return valve_.num_arrived(Kind::kCopyH2D) == 1 && valve_.num_arrived(Kind::kCopyD2H) == 1;
  });
  EXPECT_THROW(engine_->close(), TimeoutError);
  valve_.open_all();
  await([this] { return closes(); });
  engine_->close();
  collect_ends(1, 2);
  for (const TransferEnded& ended : report_.loads) EXPECT_EQ(ended.outcome, Outcome::kCancelled);
  EXPECT_EQ(report_.stores[0].outcome, Outcome::kCancelled);
}

TEST_F(WorkerLifecycleTest, ClosedBetweenBindAndSaveItStillEndsEverythingOnce) {
  StepPlan plan = next_plan();
  plan.stores.push_back(store(1, pairs(0, 0, 2), StoreReadiness::kNow));
  plan.stores.push_back(store(2, pairs(4, 4, 2)));
  bind(plan);
  engine_->close();
  collect();
  engine_->save(0);
  collect_ends(1, 0);
  ASSERT_EQ(report_.gathered.size(), 2U);
  EXPECT_EQ(report_.gathered[0].num_gathered, 2U);
  EXPECT_EQ(report_.gathered[1].num_gathered, 0U);
}

TEST_F(WorkerLifecycleTest, TakesNoNewWorkOnceClosed) {
  engine_->close();
  StepPlan plan = next_plan();
  plan.stores.push_back(store(1, pairs(0, 0, 2)));
  plan.loads.push_back(load(2, pairs(10, 10, 1)));
  bind_and_save(plan);
  collect_ends(0, 1);
  EXPECT_NE(report_.loads[0].outcome, Outcome::kDone);
  EXPECT_EQ(report_.gathered[0].num_gathered, 0U);
  EXPECT_EQ(engine_->stats().loaded_bytes + engine_->stats().stored_bytes, 0U);
}

TEST_F(WorkerLifecycleTest, MayBeDestroyedWithTransfersInFlight) {
  start({.in_flight_blocks = 1});
  valve_.hold(Kind::kCopyH2D);
  StepPlan plan = next_plan();
  plan.loads.push_back(load(1, pairs(0, 0, 4)));
  plan.stores.push_back(store(2, pairs(8, 8, 4), StoreReadiness::kNow));
  bind(plan);
  await([this] { return valve_.num_arrived(Kind::kCopyH2D) == 1; });
  std::thread opener([this] { valve_.open_all(); });
  engine_.reset();
  opener.join();
  // How much was still queued when it was dropped depends on who came first; afterwards nothing
  // runs.
  const std::uint64_t num_copies = valve_.num_arrived(Kind::kCopyH2D);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(valve_.num_arrived(Kind::kCopyH2D), num_copies);
}

TEST_F(WorkerLifecycleTest, OptionsThatCannotWorkAreRefused) {
  const auto make = [this](const WorkerOptions& options) {
    const auto base = reinterpret_cast<std::uintptr_t>(pool_.data());
    WorkerEngine engine(gpu::make_host_device(),
                        gpu::make_block_geometry(
                            {{.base = base, .block_stride_bytes = 64, .bytes = 48}}, kNumBlocks),
                        options);
  };
  WorkerOptions good;
  good.num_chunks = 4;
  EXPECT_NO_THROW(make(good));
  WorkerOptions bad = good;
  bad.rank = RankId(1);
  EXPECT_THROW(make(bad), ConfigError);
  bad = good;
  bad.world_size = 0;
  EXPECT_THROW(make(bad), ConfigError);
  bad = good;
  bad.num_chunks = 0;
  EXPECT_THROW(make(bad), ConfigError);
}

TEST_F(WorkerLifecycleTest, UnsafeCopySlotOverwritesOneSlotByAnother) {
  write(0, 1);
  write(1, 2);
  StepPlan plan = next_plan();
  plan.stores.push_back(store(1, pairs(0, 0, 2)));
  bind_and_save(plan);
  collect_ends(1, 0);
  engine_->unsafe_copy_slot(SlotId(1), SlotId(0));
  plan = next_plan();
  plan.loads.push_back(load(2, pairs(10, 0, 2)));
  bind_and_save(plan);
  collect_ends(1, 1);
  expect_content(10, 2);
  expect_content(11, 2);
}

}  // namespace
}  // namespace kvferry::connector
