// SPDX-License-Identifier: Apache-2.0
// Loads by each way across the link.
#include "kvferry/base/test_hooks.hpp"

#include "rig.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace kvferry::transfer {
namespace {

using gpu::CopyPath;
using Kind = Valve::Kind;

constexpr std::chrono::milliseconds kMoment{20};

RigOptions on_path(CopyPath path, RigOptions options = {}) {
  options.transfer.copy_path = path;
  if (options.transfer.load_staging_bytes > 1U << 20U)
    options.transfer.load_staging_bytes = 1 << 16;
  return options;
}

class PathTest : public TransferTest, public ::testing::WithParamInterface<CopyPath> {};
INSTANTIATE_TEST_SUITE_P(Paths, PathTest,
                         ::testing::Values(CopyPath::kPerRun, CopyPath::kBatch, CopyPath::kKernel,
                                           CopyPath::kStaged),
                         [](const ::testing::TestParamInfo<CopyPath>& instance) {
                           return std::string(gpu::to_string(instance.param));
                         });

TEST_P(PathTest, CarriesEveryByteAndTouchesNothingElse) {
  for (const std::uint64_t piece_bytes : {1, 1000, 1 << 20}) {
    // Staging for a few blocks only, so that regions wrap and pieces wait for it.
    Rig rig(on_path(GetParam(), {.transfer = {.staging_bytes = 1 << 16,
                                              .piece_bytes = piece_bytes,
                                              .load_staging_bytes = 1100}}));
    for (std::uint32_t g = 0; g < 3; ++g) {
      for (std::uint32_t s = 0; s < 160; ++s)
        rig.write_slot(SlabClassId(g), SlotId(s), g * 1000 + s);
      std::vector<BlockSlot> blocks;
      for (std::uint32_t i = 0; i < 40; ++i) {
        blocks.push_back({BlockId((i * 7 + g) % 64), SlotId(i < 20 ? 50 + i : (i * 51) % 160)});
      }
      const std::uint64_t before = g * 100;
      for (std::uint32_t b = 0; b < 64; ++b)
        rig.write_block(SlabClassId(g), BlockId(b), before + b);
      rig.load(g + 1, SlabClassId(g), blocks);
      const Completion end = rig.finish_one();
      EXPECT_EQ(end.outcome, Outcome::kDone) << end.reason;
      EXPECT_EQ(end.bytes, 40 * rig.packed_bytes(SlabClassId(g)));
      std::vector<std::uint64_t> expected;
      for (std::uint32_t b = 0; b < 64; ++b) expected.push_back(before + b);
      for (const auto& [block, slot, identity] : blocks)
        expected[block.value()] = g * 1000 + slot.value();
      for (std::uint32_t b = 0; b < 64; ++b) {
        ASSERT_EQ(rig.block(SlabClassId(g), BlockId(b)),
                  pattern_bytes(expected[b], rig.packed_bytes(SlabClassId(g))))
            << "class " << g << " block " << b;
      }
    }
    EXPECT_EQ(rig.engine->stats().load_staging_used_bytes, 0U);
  }
}

TEST_P(PathTest, TouchesNoBlockBeforeItsFence) {
  Rig rig(on_path(GetParam(), {.compute = RigOptions::Compute::kThread}));
  rig.write_slot(Rig::kStrided, SlotId(0), 7);
  rig.write_block(Rig::kStrided, BlockId(0), 1);
  rig.valve.hold(Kind::kFill);
  rig.fill_on_compute(Rig::kStrided, BlockId(0), 0);
  rig.load(1, Rig::kStrided, blocks_to_slots(0, 0, 1));
  if (GetParam() == CopyPath::kStaged) {
    await([&] { return rig.valve.num_arrived(Kind::kCopyH2D) == 1; }, "the copy into our memory");
  }
  std::this_thread::sleep_for(kMoment);
  EXPECT_EQ(rig.valve.num_arrived(Kind::kScatter), 0U);
  EXPECT_EQ(rig.block(Rig::kStrided, BlockId(0)), pattern_bytes(1, 128));
  rig.valve.open(Kind::kFill);
  EXPECT_EQ(rig.finish_one().outcome, Outcome::kDone);
  EXPECT_EQ(rig.block(Rig::kStrided, BlockId(0)), pattern_bytes(7, 128));
}

TEST_P(PathTest, WhicheverOperationFailsTheTransferFailsAndTheNextDoesNot) {
  for (const Kind kind : {Kind::kCopyH2D, Kind::kScatter}) {
    Rig rig(on_path(GetParam()));
    rig.valve.fail_nth(kind, 1);
    rig.load(1, Rig::kDense, blocks_to_slots(0, 0, 2));
    const Completion end = rig.finish_one();
    const bool copies = GetParam() != CopyPath::kKernel;
    const bool scatters = GetParam() == CopyPath::kKernel || GetParam() == CopyPath::kStaged;
    const bool fails = kind == Kind::kCopyH2D ? copies : scatters;
    EXPECT_EQ(end.outcome, fails ? Outcome::kFailed : Outcome::kDone);
    EXPECT_EQ(end.reason.starts_with(kind == Kind::kCopyH2D ? "copy: " : "scatter: "), fails)
        << end.reason;
    rig.write_slot(Rig::kDense, SlotId(0), 3);
    rig.load(2, Rig::kDense, blocks_to_slots(0, 0, 2));
    EXPECT_EQ(rig.finish_one().outcome, Outcome::kDone);
    EXPECT_EQ(rig.block(Rig::kDense, BlockId(0)), pattern_bytes(3, Rig::kSlotBytes));
    EXPECT_EQ(rig.engine->stats().load_staging_used_bytes, 0U);
  }
}

// G7
TEST_P(PathTest, WorkThatNoEventMarksIsWaitedFor) {
  const bool scatters = GetParam() == CopyPath::kKernel || GetParam() == CopyPath::kStaged;
  const Kind last = scatters ? Kind::kScatter : Kind::kCopyH2D;
  Rig rig(on_path(GetParam()));
  rig.valve.hold(last);
  test_hooks::fail_nth_of("transfer.record", 1);
  rig.load(1, Rig::kDense, blocks_to_slots(0, 0, 2));
  await([&] { return rig.valve.num_arrived(last) == 1; }, "the operation");
  EXPECT_FALSE(rig.engine->wait_idle(kMoment));
  rig.valve.open(last);
  EXPECT_EQ(rig.finish_one().outcome, Outcome::kFailed);
  EXPECT_EQ(rig.engine->stats().load_staging_used_bytes, 0U);
}

TEST_P(PathTest, ALossWhileItRunsPutsItInQuarantine) {
  const bool scatters = GetParam() == CopyPath::kKernel || GetParam() == CopyPath::kStaged;
  Rig rig(on_path(GetParam()));
  rig.valve.lose_nth(scatters ? Kind::kScatter : Kind::kCopyH2D, 1, gpu::LostMemory::kInDoubt);
  rig.load(1, Rig::kDense, blocks_to_slots(0, 0, 2));
  await([&] { return rig.engine->stats().quarantined_blocks == 2; }, "the quarantine");
  EXPECT_FALSE(rig.engine->wait_idle(kForever));
  EXPECT_TRUE(rig.engine->poll().empty());
  EXPECT_EQ(rig.engine->quarantine()->staging_bytes,
            GetParam() == CopyPath::kStaged ? 2 * Rig::kSlotBytes : 0);
}

TEST_P(PathTest, TheTextNamesTheForcedPath) {
  Rig rig(on_path(GetParam()));
  EXPECT_NE(
      rig.engine->copy_paths_text().find(std::string("forced to ") + gpu::to_string(GetParam())),
      std::string::npos)
      << rig.engine->copy_paths_text();
}

class StagedLoadTest : public TransferTest {};

TEST_F(StagedLoadTest, StagingMemoryIsGivenBackOnlyWhenTheScatterEnded) {
  Rig rig(on_path(CopyPath::kStaged));
  rig.valve.hold(Kind::kScatter);
  rig.load(1, Rig::kDense, blocks_to_slots(0, 0, 2));
  await([&] { return rig.valve.num_arrived(Kind::kScatter) == 1; }, "the scatter");
  std::this_thread::sleep_for(kMoment);
  EXPECT_EQ(rig.engine->stats().load_staging_used_bytes, 2 * Rig::kSlotBytes);
  EXPECT_FALSE(rig.engine->wait_idle(std::chrono::nanoseconds(0)));
  rig.valve.open(Kind::kScatter);
  EXPECT_EQ(rig.finish_one().outcome, Outcome::kDone);
  EXPECT_EQ(rig.engine->stats().load_staging_used_bytes, 0U);
}

TEST_F(StagedLoadTest, ALoadWaitsForStagingMemoryWhileStoresGoOn) {
  Rig rig(on_path(CopyPath::kStaged, {.transfer = {.staging_bytes = 1 << 16,
                                                   .piece_bytes = 2 * Rig::kSlotBytes,
                                                   .load_staging_bytes = 4 * Rig::kSlotBytes}}));
  for (std::uint32_t s = 0; s < 32; ++s) rig.write_slot(Rig::kDense, SlotId(s), s);
  rig.valve.hold(Kind::kScatter);
  for (std::uint32_t i = 0; i < 4; ++i) {
    rig.load(i + 1, Rig::kDense, blocks_to_slots(8 * i, 8 * i, 8));
  }
  await([&] { return rig.valve.num_arrived(Kind::kCopyH2D) == 2; }, "two pieces");
  ASSERT_EQ(rig.store(9, Rig::kDense, blocks_to_slots(40, 40, 4)), 4U);
  await([&] { return rig.engine->stats().stored_blocks == 4; }, "the store");
  EXPECT_EQ(rig.valve.num_arrived(Kind::kCopyH2D), 2U) << "there is no memory for a third";
  rig.valve.open(Kind::kScatter);
  EXPECT_EQ(rig.finish().size(), 5U);
  EXPECT_EQ(rig.engine->stats().loaded_blocks, 32U);
  for (std::uint32_t b = 0; b < 32; ++b) {
    ASSERT_EQ(rig.block(Rig::kDense, BlockId(b)), pattern_bytes(b, Rig::kSlotBytes)) << b;
  }
}

TEST_F(StagedLoadTest, WaitingPiecesEndWhenTheDeviceIsLost) {
  Rig rig(on_path(CopyPath::kStaged, {.transfer = {.staging_bytes = 1 << 16,
                                                   .piece_bytes = 2 * Rig::kSlotBytes,
                                                   .load_staging_bytes = 4 * Rig::kSlotBytes}}));
  rig.valve.hold(Kind::kScatter);
  // The second piece stays on the link, or its scatter might end before the loss is known.
  rig.valve.hold(Kind::kCopyH2D, 1);
  rig.valve.lose_nth(Kind::kScatter, 1, gpu::LostMemory::kInDoubt);
  for (std::uint32_t i = 0; i < 4; ++i) {
    rig.load(i + 1, Rig::kDense, blocks_to_slots(2 * i, 2 * i, 2));
  }
  await([&] { return rig.valve.num_arrived(Kind::kCopyH2D) == 2; }, "two pieces");
  await([&] { return rig.valve.num_arrived(Kind::kScatter) == 1; }, "the scatter");
  rig.valve.open(Kind::kScatter);
  await([&] { return rig.engine->stats().quarantined_blocks == 4; }, "the quarantine");
  EXPECT_FALSE(rig.engine->wait_idle(kForever));
  EXPECT_EQ(rig.engine->poll().size(), 2U) << "those that were not submitted";
}

TEST_F(StagedLoadTest, ABlockThatIsTooLargeForItsMemoryGoesAnotherWay) {
  Rig rig(on_path(CopyPath::kStaged, {.transfer = {.load_staging_bytes = Rig::kSlotBytes}}));
  rig.write_slot(Rig::kDense, SlotId(0), 4);
  rig.load(1, Rig::kDense, blocks_to_slots(0, 0, 1));
  EXPECT_EQ(rig.finish_one().outcome, Outcome::kDone);
  EXPECT_EQ(rig.block(Rig::kDense, BlockId(0)), pattern_bytes(4, Rig::kSlotBytes));
  EXPECT_EQ(rig.valve.num_arrived(Kind::kScatter), 0U);
}

TEST_F(StagedLoadTest, CrossesTheLinkInLargePieces) {
  Rig rig(on_path(CopyPath::kStaged, {.fragment_bytes = {std::vector<std::uint64_t>(16, 12)}}));
  rig.load(1, SlabClassId(0), blocks_to_slots(0, 0, 32));
  EXPECT_EQ(rig.finish_one().outcome, Outcome::kDone);
  EXPECT_EQ(rig.valve.num_arrived(Kind::kCopyH2D), 1U) << "one copy for 512 fragments";
  EXPECT_EQ(rig.valve.num_arrived(Kind::kScatter), 1U);
}

TEST_F(StagedLoadTest, MemoryIsTakenOnlyWhereSomethingMayBeStaged) {
  EXPECT_EQ(Rig().engine->stats().load_staging_size_bytes, 0U) << "the host back end by itself";
  EXPECT_EQ(Rig(on_path(CopyPath::kBatch)).engine->stats().load_staging_size_bytes, 0U);
  EXPECT_EQ(Rig(on_path(CopyPath::kStaged)).engine->stats().load_staging_size_bytes, 1U << 16U);
}

/// Loads on one lane behind two compute streams, the first of which does not go on.
class OvertakingTest : public TransferTest {
 protected:
  explicit OvertakingTest(TransferOptions transfer = {})
      : rig_(on_path(CopyPath::kStaged,
                     {.transfer = transfer, .compute = RigOptions::Compute::kThread})),
        free_stream_(rig_.device->create_stream()) {
    for (std::uint32_t i = 0; i < 8; ++i) {
      rig_.write_slot(Rig::kDense, SlotId(i), 10 + i);
      rig_.write_block(Rig::kDense, BlockId(i), i);
    }
    rig_.valve.hold(Kind::kFill);
    rig_.fill_on_compute(Rig::kDense, BlockId(60), 0);
  }
  /// Slot `number` into block `number`.
  void load_held(std::uint32_t number) {
    rig_.load(number, Rig::kDense, blocks_to_slots(number, number, 1));
  }
  void load_free(std::uint32_t number, std::uint32_t num_blocks = 1) {
    rig_.engine->load(TransferId(number), Rig::kDense, blocks_to_slots(number, number, num_blocks),
                      rig_.engine->fence(*free_stream_));
  }
  void expect_next_end(std::uint64_t transfer) {
    std::vector<Completion> ends;
    await([&] { return !(ends = rig_.engine->poll()).empty(); }, "an end");
    ASSERT_EQ(ends.size(), 1U);
    EXPECT_EQ(ends[0].transfer, TransferId(transfer));
    EXPECT_EQ(ends[0].outcome, Outcome::kDone) << ends[0].reason;
  }
  void expect_loaded(std::uint32_t number) {
    EXPECT_EQ(rig_.block(Rig::kDense, BlockId(number)), pattern_bytes(10 + number, Rig::kSlotBytes))
        << number;
  }

  Rig rig_;
  std::unique_ptr<gpu::Stream> free_stream_;
};

// LMCache#5067: with a single stream, what waits for a kernel or a fence holds up all that follows.
TEST_F(OvertakingTest, TheNextScatterIsNotHeldUpAndTheOneAfterItWaitsInItsTurn) {
  load_held(1);
  load_free(2);
  load_free(3);
  expect_next_end(2);
  expect_loaded(2);
  std::this_thread::sleep_for(kMoment);
  EXPECT_TRUE(rig_.engine->poll().empty()) << "two streams take turns";
  EXPECT_EQ(rig_.block(Rig::kDense, BlockId(1)), pattern_bytes(1, Rig::kSlotBytes));
  EXPECT_GE(rig_.engine->stats().load_staging_used_bytes, 2 * Rig::kSlotBytes);
  rig_.valve.open(Kind::kFill);
  EXPECT_EQ(rig_.finish().size(), 2U);
  for (const std::uint32_t i : {1U, 2U, 3U}) expect_loaded(i);
  EXPECT_EQ(rig_.engine->stats().load_staging_used_bytes, 0U);
}

TEST_F(OvertakingTest, CloseWaitsForTheOneThatWasOvertaken) {
  load_held(1);
  load_free(2);
  expect_next_end(2);
  EXPECT_FALSE(rig_.engine->close(kMoment));
  EXPECT_TRUE(rig_.engine->poll().empty());
  rig_.valve.open(Kind::kFill);
  EXPECT_TRUE(rig_.engine->close(kForever));
  expect_next_end(1);
  expect_loaded(1);
}

// G7: only streams that run empty say when it ends, and they do if nothing more is let in.
TEST_F(OvertakingTest, NothingOvertakesWorkThatNoEventMarks) {
  test_hooks::fail_nth_of("transfer.record", 1);
  load_held(1);
  load_free(2);
  await([&] { return rig_.valve.num_arrived(Kind::kScatter) == 1; }, "the second scatter");
  std::this_thread::sleep_for(kMoment);
  EXPECT_TRUE(rig_.engine->poll().empty());
  rig_.valve.open(Kind::kFill);
  const std::vector<Completion> ends = rig_.finish();
  ASSERT_EQ(ends.size(), 2U);
  EXPECT_EQ(ends[0].transfer, TransferId(1));
  EXPECT_EQ(ends[0].outcome, Outcome::kFailed);
  EXPECT_EQ(ends[1].outcome, Outcome::kDone);
  EXPECT_EQ(rig_.engine->stats().load_staging_used_bytes, 0U);
}

TEST_F(OvertakingTest, OfADeviceThatIsLostOnlyWhatHasNotEndedIsInDoubt) {
  load_held(1);
  load_free(2);
  expect_next_end(2);
  rig_.valve.lose_nth(Kind::kGather, 1, gpu::LostMemory::kInDoubt);
  const auto packed = rig_.device->allocate(Rig::kSlotBytes);
  free_stream_->gather(rig_.geometries[Rig::kDense.value()], std::vector{BlockId(2)},
                       packed->address());
  await([&] { return rig_.engine->stats().quarantined_blocks == 1; }, "the quarantine");
  EXPECT_FALSE(rig_.engine->wait_idle(kForever));
  EXPECT_TRUE(rig_.engine->poll().empty());
}

class MixedOvertakingTest : public OvertakingTest {
 protected:
  // Too little for a dense block.
  MixedOvertakingTest() : OvertakingTest({.load_staging_bytes = 300}) {}
};

TEST_F(MixedOvertakingTest, AStagedLoadIsOvertakenByOneThatIsNotStaged) {
  rig_.load(1, Rig::kStrided, blocks_to_slots(0, 40, 1));
  await([&] { return rig_.valve.num_arrived(Kind::kCopyH2D) == 1; }, "the copy to stage");
  load_free(2, 2);
  expect_next_end(2);
  load_free(4);
  expect_next_end(4);
  EXPECT_EQ(rig_.valve.num_arrived(Kind::kScatter), 0U);
  rig_.valve.open(Kind::kFill);
  EXPECT_EQ(rig_.finish_one().transfer, TransferId(1));
  for (const std::uint32_t i : {2U, 3U, 4U}) expect_loaded(i);
}

class KernelLoadTest : public TransferTest {};

TEST_F(KernelLoadTest, OneLaunchPerStretchOfConsecutiveSlotsInARegistration) {
  Rig rig(on_path(CopyPath::kKernel));
  ASSERT_EQ(rig.arena->chunks_per_piece(), 64U);
  std::vector<BlockSlot> blocks = blocks_to_slots(0, 0, 10);                        // One,
  for (const BlockSlot& more : blocks_to_slots(10, 20, 5)) blocks.push_back(more);  // two,
  for (const BlockSlot& more : blocks_to_slots(20, 60, 8)) blocks.push_back(more);  // three, four,
  blocks.push_back({BlockId(40), SlotId(100)});                                     // five,
  blocks.push_back({BlockId(41), SlotId(100)});                                     // six.
  for (std::uint32_t s = 0; s < 160; ++s) rig.write_slot(Rig::kDense, SlotId(s), s);
  rig.load(1, Rig::kDense, blocks);
  EXPECT_EQ(rig.finish_one().outcome, Outcome::kDone);
  EXPECT_EQ(rig.valve.num_arrived(Kind::kScatter), 6U);
  EXPECT_EQ(rig.valve.num_arrived(Kind::kCopyH2D), 0U);
  for (const auto& [block, slot, identity] : blocks) {
    ASSERT_EQ(rig.block(Rig::kDense, block), pattern_bytes(slot.value(), Rig::kSlotBytes));
  }
}

}  // namespace
}  // namespace kvferry::transfer
