// SPDX-License-Identifier: Apache-2.0
#include "kvferry/base/test_hooks.hpp"

#include "lane_watch.hpp"
#include "rig.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace kvferry::transfer {
namespace {

using Kind = Valve::Kind;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;

/// What is overdue, and what only waits.
class ProgressTest : public TransferTest {
 protected:
  static RigOptions one_by_one(std::uint64_t store_bandwidth_limit = 0) {
    return {.transfer = {.staging_bytes = std::uint64_t{1} << 16,
                         .max_in_flight_bytes = 0,
                         .piece_bytes = Rig::kSlotBytes,
                         .store_bandwidth_limit = store_bandwidth_limit}};
  }
  /// What one look of a caller counts at most.
  static constexpr nanoseconds kLook = LaneWatch::kMostPerLook;
};

// A ring that drains slower than transfer_timeout_s ended the engine: waiting for the pacer
// counted.
TEST_F(ProgressTest, AStoreThatWaitsForItsTurnIsNeverOverdue) {
  Rig rig(one_by_one(1));
  ASSERT_EQ(rig.store(1, Rig::kDense, blocks_to_slots(0, 0, 3)), 3U);
  await([&] { return rig.engine->stats().stored_bytes == Rig::kSlotBytes; }, "the first piece");
  await([&] { return rig.engine->stats().in_flight_bytes == 0; }, "its end");
  std::this_thread::sleep_for(milliseconds(5));
  EXPECT_FALSE(rig.engine->overdue(nanoseconds(0)));
}

TEST_F(ProgressTest, ALoadThatWaitsInTheQueueIsNotTheOneThatIsOverdue) {
  Rig rig(one_by_one());
  rig.valve.hold(Kind::kCopyH2D);
  rig.load(7, Rig::kDense, blocks_to_slots(0, 0, 1));
  await([&] { return rig.valve.num_arrived(Kind::kCopyH2D) == 1; }, "the first load");
  rig.load(8, Rig::kDense, blocks_to_slots(1, 1, 1));
  await([&] { return rig.engine->overdue(milliseconds(1)).has_value(); }, "the stall");
  EXPECT_EQ(rig.engine->overdue(milliseconds(1))->transfer, TransferId(7));
  rig.valve.open_all();
  EXPECT_EQ(rig.finish().size(), 2U);
}

TEST_F(ProgressTest, ACopyThatWaitsForItsGatherIsNotOverdue) {
  RigOptions options = one_by_one();
  options.compute = RigOptions::Compute::kThread;
  Rig rig(options);
  rig.valve.hold(Kind::kGather);
  ASSERT_EQ(rig.store(1, Rig::kDense, blocks_to_slots(0, 0, 1)), 1U);
  await([&] { return rig.engine->stats().in_flight_bytes != 0; }, "its submission");
  std::this_thread::sleep_for(2 * kLook);
  EXPECT_FALSE(rig.engine->overdue(kLook)) << "only this look can have counted";
  rig.valve.open(Kind::kGather);
  EXPECT_EQ(rig.finish_one().outcome, Outcome::kDone);
}

TEST_F(ProgressTest, ACopyThatTheLinkHoldsIsOverdue) {
  Rig rig(one_by_one());
  rig.valve.hold(Kind::kCopyD2H);
  ASSERT_EQ(rig.store(1, Rig::kDense, blocks_to_slots(0, 0, 1)), 1U);
  await([&] { return rig.engine->overdue(2 * kLook).has_value(); }, "the stall");
  const auto overdue = rig.engine->overdue(2 * kLook);
  EXPECT_EQ(overdue->kind, TransferKind::kStore);
  EXPECT_EQ(overdue->stall, Stall::kLink);
  rig.valve.open_all();
  EXPECT_EQ(rig.finish_one().outcome, Outcome::kDone);
}

#ifdef KVFERRY_TEST_HOOKS
TEST_F(ProgressTest, ADriverThatDoesNotReturnIsToldApart) {
  std::atomic<bool> open{false};
  test_hooks::on_pause("transfer.before_submit", [&open] {
    while (!open) std::this_thread::sleep_for(milliseconds(1));
  });
  Rig rig(one_by_one());
  rig.load(5, Rig::kDense, blocks_to_slots(0, 0, 1));
  await(
      [&] {
        const auto overdue = rig.engine->overdue(2 * kLook);
        return overdue && overdue->stall == Stall::kDriver && overdue->transfer == TransferId(5);
      },
      "the hang");
  open = true;
  EXPECT_EQ(rig.finish_one().outcome, Outcome::kDone);
}
#endif

TEST_F(ProgressTest, CancelUnbegunDropsALoadThatWaits) {
  Rig rig(one_by_one());
  rig.valve.hold(Kind::kCopyH2D);
  rig.load(1, Rig::kDense, blocks_to_slots(0, 0, 1));
  await([&] { return rig.valve.num_arrived(Kind::kCopyH2D) == 1; }, "the first load");
  rig.load(2, Rig::kDense, blocks_to_slots(1, 1, 3));
  rig.engine->cancel_unbegun(TransferId(2));
  std::vector<Completion> ends;
  await(
      [&] {
        ends = rig.engine->poll();
        return !ends.empty();
      },
      "the end of the one that waits");
  EXPECT_EQ(ends.at(0).transfer, TransferId(2));
  EXPECT_EQ(ends.at(0).outcome, Outcome::kCancelled);
  EXPECT_EQ(ends.at(0).bytes, 0U);
  rig.valve.open_all();
  EXPECT_EQ(rig.finish_one().outcome, Outcome::kDone);
  EXPECT_EQ(rig.valve.num_arrived(Kind::kCopyH2D), 1U);
}

TEST_F(ProgressTest, CancelUnbegunLetsALoadGoOnOfWhichAnyPieceWasSubmitted) {
  Rig rig(one_by_one());
  rig.valve.hold(Kind::kCopyH2D);
  for (std::uint32_t i = 0; i < 4; ++i) rig.write_slot(Rig::kDense, SlotId(i), 10 + i);
  rig.load(1, Rig::kDense, blocks_to_slots(0, 0, 4));
  await([&] { return rig.valve.num_arrived(Kind::kCopyH2D) == 1; }, "the first piece");
  rig.engine->cancel_unbegun(TransferId(1));
  rig.valve.open_all();
  EXPECT_EQ(rig.finish_one().outcome, Outcome::kDone);
  for (std::uint32_t i = 0; i < 4; ++i) {
    EXPECT_EQ(rig.block(Rig::kDense, BlockId(i)), pattern_bytes(10 + i, Rig::kSlotBytes));
  }
}

TEST_F(ProgressTest, CancelUnbegunLeavesStoresAndWhatItDoesNotKnowAlone) {
  Rig rig(one_by_one());
  rig.valve.hold(Kind::kCopyD2H);
  ASSERT_EQ(rig.store(1, Rig::kDense, blocks_to_slots(0, 0, 1)), 1U);
  ASSERT_EQ(rig.store(2, Rig::kDense, blocks_to_slots(1, 1, 1)), 1U);
  rig.engine->cancel_unbegun(TransferId(2));
  rig.engine->cancel_unbegun(TransferId(99));
  rig.valve.open_all();
  const std::vector<Completion> ends = rig.finish();
  ASSERT_EQ(ends.size(), 2U);
  for (const Completion& end : ends) EXPECT_EQ(end.outcome, Outcome::kDone);
}

}  // namespace
}  // namespace kvferry::transfer
