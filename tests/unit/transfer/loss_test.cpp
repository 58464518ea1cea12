// SPDX-License-Identifier: Apache-2.0
// G7: a device that is lost with memory in doubt; LMCache#5263, #4517.
#include "rig.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace kvferry::transfer {
namespace {

using Kind = Valve::Kind;
using gpu::LostMemory;

class LossTest : public TransferTest {
 protected:
  static void await_loss(const Rig& rig) {
    await([&] { return rig.device->lost().has_value(); }, "the loss");
  }
  static void await_quarantine(Rig& rig, std::uint64_t num_blocks) {
    await(
        [&] {
          const auto quarantine = rig.engine->quarantine();
          return quarantine && quarantine->num_blocks == num_blocks;
        },
        "the quarantine");
  }
  /// Loses the device by an operation of its own, behind the engine's back.
  static void lose_beside(Rig& rig, LostMemory memory) {
    rig.valve.lose_nth(Kind::kFill, 1, memory);
    rig.device->create_stream()->fill(rig.pools[0]->address(), 0, 1);
    await_loss(rig);
  }
  static std::map<std::uint64_t, Completion> ends_of(Rig& rig) {
    std::map<std::uint64_t, Completion> ends;
    for (Completion& end : rig.engine->poll()) {
      EXPECT_TRUE(ends.emplace(end.transfer.value(), end).second) << "ended twice";
    }
    return ends;
  }
};

TEST_F(LossTest, ATransferInDoubtNeverEndsAndItsMemoryStays) {
  for (const Kind kind : {Kind::kCopyD2H, Kind::kCopyH2D}) {
    Rig rig({.transfer = {.staging_bytes = 4 * Rig::kSlotBytes}});
    rig.valve.lose_nth(kind, 1, LostMemory::kInDoubt);
    if (kind == Kind::kCopyD2H) {
      ASSERT_EQ(rig.store(1, Rig::kDense, blocks_to_slots(0, 0, 3)), 3U);
    } else {
      rig.load(1, Rig::kDense, blocks_to_slots(0, 0, 3));
    }
    await_quarantine(rig, 3);
    EXPECT_FALSE(rig.engine->wait_idle(kForever)) << "at once: there is nothing to wait for";
    EXPECT_TRUE(rig.engine->poll().empty());
    const auto quarantine = rig.engine->quarantine();
    ASSERT_TRUE(quarantine.has_value());
    EXPECT_EQ(quarantine->num_transfers, 1U);
    EXPECT_EQ(quarantine->staging_bytes, kind == Kind::kCopyD2H ? 3 * Rig::kSlotBytes : 0);
    EXPECT_EQ(rig.engine->stats().quarantined_blocks, 3U);
    EXPECT_EQ(rig.engine->stats().ring_used_bytes, quarantine->staging_bytes);
    EXPECT_FALSE(rig.engine->close(kForever));
    EXPECT_TRUE(rig.engine->poll().empty());
  }
}

TEST_F(LossTest, TheQuarantineSaysWhatWasLostSinceWhenAndWhatStays) {
  Rig rig;
  EXPECT_FALSE(rig.engine->quarantine().has_value());
  rig.valve.lose_nth(Kind::kCopyD2H, 1, LostMemory::kInDoubt);
  ASSERT_EQ(rig.store(1, Rig::kDense, blocks_to_slots(0, 0, 3)), 3U);
  await_quarantine(rig, 3);
  const std::string text = to_string(*rig.engine->quarantine());
  for (const std::string& part :
       {std::string("in doubt"), std::string("by request of the test"),
        gpu::utc_text(rig.device->lost()->since), std::string("1 transfers with 3 blocks"),
        std::string("576 bytes of staging memory")}) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  }
}

// Only what was submitted is in doubt: the rest was never touched, and ends.
TEST_F(LossTest, WhatWasNotSubmittedEndsAsFailed) {
  Rig rig({.transfer = {.staging_bytes = 1 << 16, .max_in_flight_bytes = 0}});
  rig.valve.hold(Kind::kCopyH2D);
  rig.valve.hold(Kind::kCopyD2H);
  rig.valve.lose_nth(Kind::kCopyH2D, 1, LostMemory::kInDoubt);
  rig.load(1, Rig::kDense, blocks_to_slots(0, 0, 2));
  ASSERT_EQ(rig.store(2, Rig::kDense, blocks_to_slots(2, 2, 2)), 2U);
  await([&] { return rig.valve.num_arrived(Kind::kCopyD2H) == 1; }, "the store's copy");
  // Behind those two, in the queue.
  rig.load(3, Rig::kDense, blocks_to_slots(4, 4, 2));
  ASSERT_EQ(rig.store(4, Rig::kDense, blocks_to_slots(6, 6, 2)), 2U);
  rig.valve.open(Kind::kCopyH2D);
  await_quarantine(rig, 4);
  EXPECT_FALSE(rig.engine->wait_idle(kForever));
  const auto ends = ends_of(rig);
  ASSERT_EQ(ends.size(), 2U);
  for (const std::uint64_t id : {3, 4}) {
    ASSERT_TRUE(ends.contains(id));
    EXPECT_EQ(ends.at(id).outcome, Outcome::kFailed);
    EXPECT_NE(ends.at(id).reason.find("lost"), std::string::npos) << ends.at(id).reason;
  }
  EXPECT_EQ(rig.engine->stats().ring_used_bytes, 4 * Rig::kSlotBytes)
      << "a ring returns nothing past what is in doubt";
}

TEST_F(LossTest, WhatWasSeenDoneBeforeStaysDone) {
  Rig rig;
  rig.write_block(Rig::kDense, BlockId(0), 5);
  ASSERT_EQ(rig.store(1, Rig::kDense, blocks_to_slots(0, 0, 1)), 1U);
  ASSERT_TRUE(rig.engine->wait_idle(kForever));
  lose_beside(rig, LostMemory::kInDoubt);
  const auto ends = ends_of(rig);
  ASSERT_EQ(ends.size(), 1U);
  EXPECT_EQ(ends.at(1).outcome, Outcome::kDone);
  EXPECT_EQ(rig.slot(Rig::kDense, SlotId(0)), pattern_bytes(5, Rig::kSlotBytes));
  EXPECT_EQ(rig.engine->quarantine()->num_blocks, 0U);
  EXPECT_TRUE(rig.engine->close(kForever)) << "nothing of ours is in doubt";
}

TEST_F(LossTest, ALostDeviceIsGivenNothingMore) {
  for (const auto memory : {LostMemory::kInDoubt, LostMemory::kQuiet}) {
    Rig rig;
    lose_beside(rig, memory);
    EXPECT_EQ(rig.store(1, Rig::kDense, blocks_to_slots(0, 0, 2)), 0U);
    rig.load(2, Rig::kDense, blocks_to_slots(0, 0, 2));
    rig.load(3, Rig::kDense, {});
    EXPECT_TRUE(rig.engine->wait_idle(kForever));
    const auto ends = ends_of(rig);
    ASSERT_EQ(ends.size(), 2U);
    EXPECT_EQ(ends.at(2).outcome, Outcome::kFailed);
    EXPECT_NE(ends.at(2).reason.find("lost"), std::string::npos) << ends.at(2).reason;
    EXPECT_EQ(rig.engine->stats().ring_used_bytes, 0U);
  }
}

// A gather in doubt still reads blocks and writes the ring, though no copy was ever submitted.
TEST_F(LossTest, AGatherInDoubtKeepsItsStoreFromEnding) {
  Rig rig({.compute = RigOptions::Compute::kThread});
  rig.valve.hold(Kind::kGather);
  ASSERT_EQ(rig.store(1, Rig::kDense, blocks_to_slots(0, 0, 2)), 2U);
  rig.engine->cancel(TransferId(1));
  lose_beside(rig, LostMemory::kInDoubt);
  await_quarantine(rig, 2);
  EXPECT_FALSE(rig.engine->wait_idle(kForever));
  EXPECT_TRUE(rig.engine->poll().empty());
  EXPECT_EQ(rig.engine->stats().ring_used_bytes, 2 * Rig::kSlotBytes);
}

TEST_F(LossTest, AQuietLossEndsEverythingAsFailedAndLeavesNothing) {
  Rig rig({.transfer = {.staging_bytes = 1 << 16, .piece_bytes = Rig::kSlotBytes},
           .compute = RigOptions::Compute::kThread});
  rig.valve.hold(Kind::kCopyD2H);
  rig.valve.hold(Kind::kCopyH2D);
  ASSERT_EQ(rig.store(1, Rig::kDense, blocks_to_slots(0, 0, 4)), 4U);
  rig.load(2, Rig::kDense, blocks_to_slots(8, 8, 4));
  lose_beside(rig, LostMemory::kQuiet);
  EXPECT_TRUE(rig.engine->wait_idle(kForever));
  const auto ends = ends_of(rig);
  ASSERT_EQ(ends.size(), 2U);
  for (const auto& [id, end] : ends) EXPECT_EQ(end.outcome, Outcome::kFailed) << id;
  EXPECT_FALSE(rig.engine->quarantine().has_value());
  EXPECT_EQ(rig.engine->stats().ring_used_bytes, 0U);
  EXPECT_EQ(rig.engine->stats().quarantined_blocks, 0U);
  EXPECT_TRUE(rig.engine->close(kForever));
}

// A driver that goes down at the end of the process makes quiet what was in doubt.
TEST_F(LossTest, MemoryInDoubtThatBecomesQuietEnds) {
  Rig rig;
  rig.valve.hold(Kind::kCopyH2D);
  rig.load(1, Rig::kDense, blocks_to_slots(0, 0, 2));
  await([&] { return rig.valve.num_arrived(Kind::kCopyH2D) == 1; }, "the copy");
  rig.valve.lose_nth(Kind::kFill, 1, LostMemory::kInDoubt);
  rig.valve.hold(Kind::kScatter);
  rig.valve.lose_nth(Kind::kScatter, 1, LostMemory::kQuiet);
  const auto losing = rig.device->create_stream();
  losing->scatter(rig.geometries[1], std::vector{BlockId(9)}, rig.pools[0]->address());
  lose_beside(rig, LostMemory::kInDoubt);
  await_quarantine(rig, 2);
  EXPECT_TRUE(rig.engine->poll().empty());
  rig.valve.open(Kind::kScatter);
  await([&] { return rig.device->lost()->memory == LostMemory::kQuiet; }, "the driver's end");
  EXPECT_TRUE(rig.engine->wait_idle(kForever));
  EXPECT_EQ(rig.finish_one().outcome, Outcome::kFailed);
}

// The device goes on writing when everything that it writes was given up: ASan watches.
TEST_F(LossTest, DestructionWaitsForNothingAndFreesNothingInDoubt) {
  for (const Kind kind : {Kind::kCopyD2H, Kind::kGather}) {
    Rig rig({.compute = RigOptions::Compute::kThread});
    rig.valve.hold(kind);
    ASSERT_EQ(rig.store(1, Rig::kDense, blocks_to_slots(0, 0, 8)), 8U);
    await([&] { return rig.valve.num_arrived(kind) == 1; }, "the operation");
    lose_beside(rig, LostMemory::kInDoubt);
    rig.engine.reset();
    rig.valve.open_all();
    static_cast<void>(rig.compute->synchronize(std::chrono::milliseconds(20)));
  }
}

TEST_F(LossTest, CloseFromAnotherThreadReturnsWhenTheDeviceIsLost) {
  Rig rig;
  rig.valve.hold(Kind::kCopyH2D);
  rig.load(1, Rig::kDense, blocks_to_slots(0, 0, 2));
  await([&] { return rig.valve.num_arrived(Kind::kCopyH2D) == 1; }, "the copy");
  std::thread closer([&] { EXPECT_FALSE(rig.engine->close(kForever)); });
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  lose_beside(rig, LostMemory::kInDoubt);
  closer.join();
  EXPECT_EQ(rig.engine->quarantine()->num_transfers, 1U);
}

}  // namespace
}  // namespace kvferry::transfer
