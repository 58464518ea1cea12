// SPDX-License-Identifier: Apache-2.0
#include "rig.hpp"
#include "store_pacer.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <limits>
#include <map>
#include <vector>

namespace kvferry::transfer {
namespace {

using std::chrono::milliseconds;

const StorePacer::Time kStart(std::chrono::hours(1));

TEST(StorePacer, WithoutARateNothingWaits) {
  StorePacer pacer(0);
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(pacer.may_start(kStart));
    pacer.start(std::uint64_t{1} << 40U, kStart);
  }
}

TEST(StorePacer, APieceStartsWhenTheOneBeforeHasTakenItsTime) {
  StorePacer pacer(1'000'000);
  EXPECT_TRUE(pacer.may_start(kStart)) << "the first at once";
  pacer.start(5'000, kStart);
  EXPECT_EQ(pacer.next(), kStart + milliseconds(5));
  EXPECT_FALSE(pacer.may_start(kStart + milliseconds(5) - std::chrono::nanoseconds(1)));
  EXPECT_TRUE(pacer.may_start(kStart + milliseconds(5)));
}

TEST(StorePacer, TimeThatNothingUsedIsNotSavedUp) {
  StorePacer pacer(1'000'000);
  pacer.start(1'000, kStart);
  const auto later = kStart + std::chrono::hours(5);
  ASSERT_TRUE(pacer.may_start(later));
  pacer.start(1'000, later);
  EXPECT_FALSE(pacer.may_start(later)) << "a burst is one piece";
  EXPECT_EQ(pacer.next(), later + milliseconds(1));
}

TEST(StorePacer, KeepsTheRateOverManyPieces) {
  StorePacer pacer(4'000'000'000);
  auto now = kStart;
  std::uint64_t bytes = 0;
  for (std::uint64_t i = 0; i < 1000; ++i) {
    // The thread looks every 50 us, or a little late.
    while (!pacer.may_start(now)) now += std::chrono::microseconds(50);
    pacer.start(std::uint64_t{8} << 20U, now);
    bytes += std::uint64_t{8} << 20U;
  }
  const double took_s = std::chrono::duration<double>(pacer.next() - kStart).count();
  EXPECT_LE(static_cast<double>(bytes) / took_s, 4'000'000'000 * 1.0001);
  EXPECT_GE(static_cast<double>(bytes) / took_s, 4'000'000'000 * 0.95);
}

TEST(StorePacer, TheSlowestRateIsStillATime) {
  StorePacer pacer(1);
  for (int i = 0; i < 10; ++i) pacer.start(std::numeric_limits<std::uint64_t>::max(), kStart);
  EXPECT_GT(pacer.next(), kStart);
}

class PacingTest : public TransferTest {
 protected:
  /// At one byte per second the second piece starts after minutes: in no test that passes.
  static RigOptions slow() {
    return {.transfer = {.staging_bytes = 1 << 16,
                         .piece_bytes = Rig::kSlotBytes,
                         .store_bandwidth_limit = 1}};
  }
  static void await_first_piece(const Rig& rig) {
    await([&] { return rig.engine->stats().stored_bytes == Rig::kSlotBytes; }, "the first piece");
  }
};

TEST_F(PacingTest, HoldsStoresBackAndNeverLoads) {
  Rig rig(slow());
  rig.write_slot(Rig::kDense, SlotId(100), 7);
  ASSERT_EQ(rig.store(1, Rig::kDense, blocks_to_slots(0, 0, 3)), 3U);
  await_first_piece(rig);
  for (std::uint64_t id = 2; id < 6; ++id) {
    rig.load(id, Rig::kDense, blocks_to_slots(10, 100, 1));
    await([&] { return rig.engine->stats().loaded_blocks == id - 1; }, "the load");
  }
  EXPECT_EQ(rig.block(Rig::kDense, BlockId(10)), pattern_bytes(7, Rig::kSlotBytes));
  EXPECT_EQ(rig.engine->stats().stored_bytes, Rig::kSlotBytes);
  EXPECT_EQ(rig.engine->stats().queued_bytes, 2 * Rig::kSlotBytes);
}

TEST_F(PacingTest, CancelAndCloseDoNotWaitForTheirTurn) {
  for (const bool closes : {false, true}) {
    Rig rig(slow());
    ASSERT_EQ(rig.store(1, Rig::kDense, blocks_to_slots(0, 0, 3)), 3U);
    await_first_piece(rig);
    if (closes) {
      EXPECT_TRUE(rig.engine->close(kForever));
    } else {
      rig.engine->cancel(TransferId(1));
    }
    const Completion end = rig.finish_one();
    EXPECT_EQ(end.outcome, Outcome::kCancelled);
    EXPECT_EQ(end.bytes, Rig::kSlotBytes);
    EXPECT_EQ(rig.engine->stats().ring_used_bytes, 0U);
  }
}

TEST_F(PacingTest, AFailedStoreEndsWithoutItsTurn) {
  Rig rig(slow());
  rig.valve.fail_nth(Valve::Kind::kCopyD2H, 1);
  ASSERT_EQ(rig.store(1, Rig::kDense, blocks_to_slots(0, 0, 3)), 3U);
  EXPECT_EQ(rig.finish_one().outcome, Outcome::kFailed);
  EXPECT_EQ(rig.engine->stats().queued_bytes, 0U);
}

TEST_F(PacingTest, StoresGoOnWhenTheirTurnComes) {
  Rig rig({.transfer = {.staging_bytes = 1 << 16,
                        .piece_bytes = Rig::kSlotBytes,
                        .store_bandwidth_limit = 1'000'000}});
  for (std::uint32_t i = 0; i < 20; ++i) rig.write_block(Rig::kDense, BlockId(i), i);
  const auto start = std::chrono::steady_clock::now();
  ASSERT_EQ(rig.store(1, Rig::kDense, blocks_to_slots(0, 0, 20)), 20U);
  EXPECT_EQ(rig.finish_one().outcome, Outcome::kDone);
  // Certain whatever the machine does: 19 pieces took their time before the last one began.
  EXPECT_GE(std::chrono::steady_clock::now() - start,
            std::chrono::microseconds(19 * Rig::kSlotBytes));
  for (std::uint32_t i = 0; i < 20; ++i) {
    ASSERT_EQ(rig.slot(Rig::kDense, SlotId(i)), pattern_bytes(i, Rig::kSlotBytes));
  }
}

}  // namespace
}  // namespace kvferry::transfer
