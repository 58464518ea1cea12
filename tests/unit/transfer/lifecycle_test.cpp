// SPDX-License-Identifier: Apache-2.0
#include "kvferry/base/test_hooks.hpp"

#include "rig.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <thread>
#include <vector>

namespace kvferry::transfer {
namespace {

using Kind = Valve::Kind;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;

/// One piece in flight at a time, one block per piece.
constexpr TransferOptions kOneByOne = {.staging_bytes = std::uint64_t{1} << 16,
                                       .max_in_flight_bytes = 0,
                                       .piece_bytes = Rig::kSlotBytes};

class CancelTest : public TransferTest {};

TEST_F(CancelTest, EndsAQueuedTransferWithoutTouchingTheLink) {
  Rig rig({.transfer = kOneByOne});
  rig.valve.hold(Kind::kCopyD2H);
  ASSERT_EQ(rig.store(1, Rig::kDense, blocks_to_slots(0, 0, 1)), 1U);
  ASSERT_EQ(rig.store(2, Rig::kDense, blocks_to_slots(1, 1, 4)), 4U);
  rig.engine->cancel(TransferId(2));
  std::vector<Completion> ends;
  await(
      [&] {
        ends = rig.engine->poll();
        return !ends.empty();
      },
      "the cancelled store");
  EXPECT_EQ(ends.at(0).transfer, TransferId(2));
  EXPECT_EQ(ends.at(0).outcome, Outcome::kCancelled);
  EXPECT_EQ(ends.at(0).bytes, 0U);
  rig.valve.open(Kind::kCopyD2H);
  EXPECT_EQ(rig.finish_one().outcome, Outcome::kDone);
  EXPECT_EQ(rig.valve.num_arrived(Kind::kCopyD2H), 1U);
  EXPECT_EQ(rig.engine->stats().ring_used_bytes, 0U);
  EXPECT_EQ(rig.engine->stats().cancelled_transfers, 1U);
}

// TensorRT-LLM#15546, sglang#30321: no end is told under a live copy.
TEST_F(CancelTest, WaitsForTheRunningPieceOfALoad) {
  Rig rig({.transfer = kOneByOne});
  rig.valve.hold(Kind::kCopyH2D);
  rig.load(1, Rig::kDense, blocks_to_slots(0, 0, 5));
  await([&] { return rig.valve.num_arrived(Kind::kCopyH2D) == 1; }, "the first piece");
  rig.engine->cancel(TransferId(1));
  EXPECT_FALSE(rig.engine->wait_idle(milliseconds(20)));
  EXPECT_TRUE(rig.engine->poll().empty());
  rig.valve.open(Kind::kCopyH2D);
  const Completion end = rig.finish_one();
  EXPECT_EQ(end.outcome, Outcome::kCancelled);
  EXPECT_EQ(end.bytes, Rig::kSlotBytes);
  EXPECT_EQ(rig.valve.num_arrived(Kind::kCopyH2D), 1U);
}

TEST_F(CancelTest, WaitsForTheGatherOfAQueuedStore) {
  Rig rig({.transfer = {.staging_bytes = 4 * Rig::kSlotBytes,
                        .max_in_flight_bytes = 0,
                        .piece_bytes = Rig::kSlotBytes},
           .compute = RigOptions::Compute::kThread});
  rig.valve.hold(Kind::kCopyD2H);
  ASSERT_EQ(rig.store(1, Rig::kDense, blocks_to_slots(0, 0, 1)), 1U);
  await([&] { return rig.valve.num_arrived(Kind::kCopyD2H) == 1; }, "the first store");
  rig.valve.hold(Kind::kGather);
  ASSERT_EQ(rig.store(2, Rig::kDense, blocks_to_slots(1, 1, 3)), 3U);
  rig.engine->cancel(TransferId(2));
  rig.valve.open(Kind::kCopyD2H);
  await([&] { return rig.engine->poll().size() == 1; }, "the end of the first store");
  // The launch still reads the blocks and writes the ring: no end, and no ring memory for others.
  EXPECT_FALSE(rig.engine->wait_idle(milliseconds(20)));
  EXPECT_EQ(rig.engine->stats().ring_used_bytes, 3 * Rig::kSlotBytes);
  EXPECT_EQ(rig.store(3, Rig::kDense, blocks_to_slots(4, 4, 4)), 1U);
  rig.valve.open(Kind::kGather);
  EXPECT_EQ(rig.finish().size(), 2U);
  EXPECT_EQ(rig.engine->stats().ring_used_bytes, 0U);
}

TEST_F(CancelTest, OfATransferThatRunsEntirelyChangesNothing) {
  Rig rig;
  rig.write_slot(Rig::kDense, SlotId(0), 9);
  rig.valve.hold(Kind::kCopyH2D);
  rig.load(1, Rig::kDense, blocks_to_slots(0, 0, 1));
  await([&] { return rig.valve.num_arrived(Kind::kCopyH2D) == 1; }, "the copy");
  rig.engine->cancel(TransferId(1));
  rig.valve.open(Kind::kCopyH2D);
  EXPECT_EQ(rig.finish_one().outcome, Outcome::kDone);
  EXPECT_EQ(rig.block(Rig::kDense, BlockId(0)), pattern_bytes(9, 192));
}

TEST_F(CancelTest, OfUnknownAndEndedTransfersIsIgnored) {
  Rig rig;
  rig.engine->cancel(TransferId(77));
  rig.load(1, Rig::kDense, blocks_to_slots(0, 0, 1));
  EXPECT_EQ(rig.finish_one().outcome, Outcome::kDone);
  rig.engine->cancel(TransferId(1));
  rig.engine->cancel(TransferId(1));
  EXPECT_TRUE(rig.finish().empty());
}

TEST_F(CancelTest, AnUnsealedStoreTakesNothingMoreAndEndsOnceSealed) {
  Rig rig({.transfer = kOneByOne});
  rig.valve.hold(Kind::kCopyD2H);
  const TransferId id(1);
  ASSERT_EQ(rig.engine->gather(*rig.compute, id, Rig::kDense, blocks_to_slots(0, 0, 3)), 3U);
  rig.engine->cancel(id);
  rig.valve.open(Kind::kCopyD2H);
  EXPECT_EQ(rig.engine->gather(*rig.compute, id, Rig::kDense, blocks_to_slots(3, 3, 1)), 0U);
  EXPECT_FALSE(rig.engine->wait_idle(milliseconds(5)));
  EXPECT_TRUE(rig.engine->seal(id));
  EXPECT_EQ(rig.finish_one().outcome, Outcome::kCancelled);
}

class CloseTest : public TransferTest {};

TEST_F(CloseTest, DropsWhatIsQueuedAndWaitsForWhatRuns) {
  Rig rig({.transfer = kOneByOne});
  rig.valve.hold(Kind::kCopyD2H);
  rig.valve.hold(Kind::kCopyH2D);
  ASSERT_EQ(rig.store(1, Rig::kDense, blocks_to_slots(0, 0, 1)), 1U);
  ASSERT_EQ(rig.store(2, Rig::kDense, blocks_to_slots(1, 1, 3)), 3U);
  rig.load(3, Rig::kDense, blocks_to_slots(10, 10, 2));
  await([&] { return rig.valve.num_arrived(Kind::kCopyH2D) == 1; }, "the load");
  await([&] { return rig.valve.num_arrived(Kind::kCopyD2H) == 1; }, "the store");
  EXPECT_FALSE(rig.engine->close(milliseconds(5)));
  EXPECT_FALSE(rig.engine->close(nanoseconds(0)));
  rig.valve.open_all();
  EXPECT_TRUE(rig.engine->close(kForever));
  EXPECT_TRUE(rig.engine->close(nanoseconds(0)));

  std::vector<Completion> ends = rig.engine->poll();
  ASSERT_EQ(ends.size(), 3U);
  std::sort(ends.begin(), ends.end(),
            [](const Completion& a, const Completion& b) { return a.transfer < b.transfer; });
  EXPECT_EQ(ends[0].outcome, Outcome::kDone);
  EXPECT_EQ(ends[1].outcome, Outcome::kCancelled);
  EXPECT_EQ(ends[2].outcome, Outcome::kCancelled);
  EXPECT_EQ(rig.valve.num_arrived(Kind::kCopyD2H), 1U);
  EXPECT_EQ(rig.valve.num_arrived(Kind::kCopyH2D), 1U);
  EXPECT_EQ(rig.engine->stats().ring_used_bytes, 0U);
}

TEST_F(CloseTest, RefusesNewWorkButAnswersIt) {
  Rig rig;
  EXPECT_TRUE(rig.engine->close(nanoseconds(0)));
  EXPECT_EQ(rig.store(1, Rig::kDense, blocks_to_slots(0, 0, 1)), 0U);
  rig.load(2, Rig::kDense, blocks_to_slots(0, 0, 1));
  const std::vector<Completion> ends = rig.engine->poll();
  ASSERT_EQ(ends.size(), 1U);
  EXPECT_EQ(ends[0].outcome, Outcome::kCancelled);
  EXPECT_EQ(rig.valve.num_arrived(Kind::kCopyH2D), 0U);
}

TEST_F(CloseTest, SealsAStoreThatIsBeingGathered) {
  Rig rig({.transfer = kOneByOne});
  rig.valve.hold(Kind::kCopyD2H);
  ASSERT_EQ(rig.engine->gather(*rig.compute, TransferId(1), Rig::kDense, blocks_to_slots(0, 0, 2)),
            2U);
  await([&] { return rig.valve.num_arrived(Kind::kCopyD2H) == 1; }, "the first piece");
  EXPECT_FALSE(rig.engine->close(nanoseconds(0)));
  rig.valve.open_all();
  EXPECT_TRUE(rig.engine->close(kForever));
  // The engine thread, none the wiser, goes on with its step.
  EXPECT_EQ(rig.engine->gather(*rig.compute, TransferId(1), Rig::kDense, blocks_to_slots(2, 2, 2)),
            0U);
  EXPECT_TRUE(rig.engine->seal(TransferId(1))) << "there is a Completion";
  EXPECT_EQ(rig.finish_one().outcome, Outcome::kCancelled);
}

TEST_F(CloseTest, WaitsForAGatherThatIsBeingLaunched) {
  Rig rig;
  rig.valve.hold(Kind::kGather);
  std::thread engine_thread([&] {  // The compute stream runs inline: gather() is inside the launch.
    EXPECT_EQ(
        rig.engine->gather(*rig.compute, TransferId(1), Rig::kDense, blocks_to_slots(0, 0, 2)), 2U);
    EXPECT_TRUE(rig.engine->seal(TransferId(1)));
  });
  await([&] { return rig.valve.num_arrived(Kind::kGather) == 1; }, "the launch");
  EXPECT_FALSE(rig.engine->close(milliseconds(5)));
  rig.valve.open_all();
  EXPECT_TRUE(rig.engine->close(kForever));
  engine_thread.join();
  EXPECT_EQ(rig.finish_one().outcome, Outcome::kCancelled);
  EXPECT_EQ(rig.valve.num_arrived(Kind::kCopyD2H), 0U);
  EXPECT_EQ(rig.engine->stats().ring_used_bytes, 0U);
}

TEST_F(CloseTest, TheDestructorClosesWithWorkQueuedRunningAndUnsealed) {
  Rig rig({.transfer = kOneByOne});
  for (std::uint64_t id = 1; id <= 4; ++id) {
    const auto first = static_cast<std::uint32_t>(id * 8);
    static_cast<void>(rig.engine->gather(*rig.compute, TransferId(id), Rig::kDense,
                                         blocks_to_slots(first, first, 8)));
    rig.load(100 + id, Rig::kStrided, blocks_to_slots(first, 80 + first, 8));
  }
  rig.engine
      .reset();  // Without hanging, and before device, arena and pool go: the sanitizers watch.
}

class StateTest : public TransferTest {};

TEST_F(StateTest, TellsTheTransferThatIsOverdueLongest) {
  Rig rig;
  EXPECT_FALSE(rig.engine->overdue(nanoseconds(0)).has_value());
  rig.valve.hold(Kind::kCopyD2H);
  rig.valve.hold(Kind::kCopyH2D);
  rig.load(7, Rig::kDense, blocks_to_slots(0, 0, 1));
  await([&] { return rig.valve.num_arrived(Kind::kCopyH2D) == 1; }, "the load");
  await([&] { return rig.engine->overdue(milliseconds(1)).has_value(); }, "its stall");
  ASSERT_EQ(rig.store(8, Rig::kDense, blocks_to_slots(1, 1, 1)), 1U);
  const auto overdue = rig.engine->overdue(nanoseconds(0));
  ASSERT_TRUE(overdue.has_value());
  EXPECT_EQ(overdue->transfer, TransferId(7));
  EXPECT_EQ(overdue->kind, TransferKind::kLoad);
  EXPECT_GT(overdue->age, nanoseconds(0));
  EXPECT_FALSE(rig.engine->overdue(std::chrono::hours(1)).has_value());
  rig.valve.open_all();
  EXPECT_EQ(rig.finish().size(), 2U);
  EXPECT_FALSE(rig.engine->overdue(nanoseconds(0)).has_value());
}

TEST_F(StateTest, ToldEndsAreNotToldAgain) {
  Rig rig;
  rig.load(1, Rig::kDense, {});
  EXPECT_EQ(rig.engine->poll().size(), 1U);
  EXPECT_TRUE(rig.engine->poll().empty());
}

TEST_F(StateTest, NoEndIsToldBeforeTheTransferThreadSawIt) {
  Rig rig;
  std::atomic<bool> hold{true};
  std::atomic<bool> reached{false};
  test_hooks::on_pause("transfer.before_complete", [&] {
    reached = true;
    while (hold) std::this_thread::yield();
  });
  rig.load(1, Rig::kDense, blocks_to_slots(0, 0, 1));
  await([&] { return reached.load(); }, "the copy's end");
  EXPECT_TRUE(rig.engine->poll().empty());
  EXPECT_FALSE(rig.engine->wait_idle(nanoseconds(0)));
  hold = false;
  EXPECT_EQ(rig.finish_one().outcome, Outcome::kDone);
}

TEST_F(StateTest, AnIdInUseTwiceIsABrokenInvariant) {
  Rig rig;
  rig.valve.hold(Kind::kCopyH2D);
  rig.load(1, Rig::kDense, blocks_to_slots(0, 0, 1));
  EXPECT_DEATH(rig.load(1, Rig::kDense, blocks_to_slots(1, 1, 1)), "under way already");
  EXPECT_DEATH(rig.store(1, Rig::kDense, blocks_to_slots(1, 1, 1)), "a load or sealed");
  EXPECT_DEATH(static_cast<void>(rig.engine->seal(TransferId(1))), "a load or sealed");
  EXPECT_DEATH(rig.load(0, Rig::kDense, blocks_to_slots(1, 1, 1)), "transfer id 0");
}

}  // namespace
}  // namespace kvferry::transfer
