// SPDX-License-Identifier: Apache-2.0
#include "kvferry/base/error.hpp"
#include "kvferry/base/test_hooks.hpp"

#include "rig.hpp"
#include "test_backend.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace kvferry::transfer {
namespace {

using Kind = Valve::Kind;

TEST_F(LoadTest, SplitsABlockOfMoreFragmentsThanOneCallTakes) {
  const std::size_t num_fragments = gpu::kMaxBatchRuns + 500;
  Rig rig({.fragment_bytes = {std::vector<std::uint64_t>(num_fragments, 3)},
           .num_blocks = 2,
           .num_slots = 4});
  const SlabClassId slab_class(0);
  rig.write_slot(slab_class, SlotId(2), 21);
  rig.load(1, slab_class, {{BlockId(1), SlotId(2)}});
  EXPECT_EQ(rig.finish_one().outcome, Outcome::kDone);
  EXPECT_EQ(rig.valve.num_arrived(Kind::kCopyH2D), 2U);
  EXPECT_EQ(rig.block(slab_class, BlockId(1)), pattern_bytes(21, 3 * num_fragments));
}

TEST_F(LoadTest, KeepsEachCallWithinTheLimitOfRuns) {
  // 1,500 fragments: two blocks fit into one call, three do not.
  Rig rig(
      {.fragment_bytes = {std::vector<std::uint64_t>(1500, 5)}, .num_blocks = 8, .num_slots = 8});
  for (std::uint32_t s = 0; s < 5; ++s) rig.write_slot(SlabClassId(0), SlotId(s), s);
  rig.load(1, SlabClassId(0), blocks_to_slots(3, 0, 5));
  EXPECT_EQ(rig.finish_one().outcome, Outcome::kDone);
  EXPECT_EQ(rig.valve.num_arrived(Kind::kCopyH2D), 3U);
  for (std::uint32_t s = 0; s < 5; ++s) {
    EXPECT_EQ(rig.block(SlabClassId(0), BlockId(3 + s)), pattern_bytes(s, 7500));
  }
}

TEST_F(LoadTest, AnEmptyLoadCompletesAtOnce) {
  Rig rig;
  rig.load(1, Rig::kDense, {});
  const std::vector<Completion> ends = rig.engine->poll();
  ASSERT_EQ(ends.size(), 1U);
  EXPECT_EQ(ends[0].outcome, Outcome::kDone);
  EXPECT_EQ(ends[0].bytes, 0U);
}

TEST_F(LoadTest, OvertakesQueuedStores) {
  Rig rig(
      {.transfer = {
           .staging_bytes = 1 << 16, .max_in_flight_bytes = 0, .piece_bytes = Rig::kSlotBytes}});
  rig.valve.hold(Kind::kCopyD2H);
  for (std::uint64_t id = 1; id <= 5; ++id) {
    const auto first = static_cast<std::uint32_t>(4 * id);
    ASSERT_EQ(rig.store(id, Rig::kDense, blocks_to_slots(first, first, 4)), 4U);
  }
  rig.load(6, Rig::kDense, blocks_to_slots(40, 40, 8));
  std::vector<Completion> ends;
  await(
      [&] {
        ends = rig.engine->poll();
        return !ends.empty();
      },
      "the load");
  ASSERT_EQ(ends.size(), 1U);
  EXPECT_EQ(ends[0].transfer, TransferId(6));
  EXPECT_EQ(rig.engine->stats().stored_bytes, 0U);
  rig.valve.open(Kind::kCopyD2H);
  EXPECT_EQ(rig.finish().size(), 5U);
}

// The catalogue's "a load overtakes a zeroing that is still queued on the compute stream".
TEST_F(LoadTest, WaitsForAZeroingThatWasSubmittedBeforeItsFence) {
  Rig rig({.compute = RigOptions::Compute::kThread});
  rig.write_slot(Rig::kStrided, SlotId(5), 55);
  rig.valve.hold(Kind::kFill);
  rig.fill_on_compute(Rig::kStrided, BlockId(2), 0);
  std::atomic<int> submitted{0};
  test_hooks::on_pause("transfer.before_submit", [&] { ++submitted; });
  rig.load(1, Rig::kStrided, {{BlockId(2), SlotId(5)}});
  await([&] { return submitted == 1; }, "submission");
  // Time enough for a copy that does not wait; one that does is not hurried by it.
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(rig.valve.num_arrived(Kind::kCopyH2D), 0U);
  rig.valve.open(Kind::kFill);
  EXPECT_EQ(rig.finish_one().outcome, Outcome::kDone);
  EXPECT_EQ(rig.block(Rig::kStrided, BlockId(2)), pattern_bytes(55, 128));
}

// The catalogue's "a load overtakes a gather of the same block: the new bytes land under the old
// hash".
TEST_F(LoadTest, LeavesAnEarlierGatherOfItsBlockTheOldBytes) {
  Rig rig({.compute = RigOptions::Compute::kThread});
  rig.write_block(Rig::kStrided, BlockId(2), 1);
  rig.write_slot(Rig::kStrided, SlotId(5), 2);
  rig.valve.hold(Kind::kGather);
  ASSERT_EQ(rig.store(1, Rig::kStrided, {{BlockId(2), SlotId(6)}}), 1U);
  std::atomic<int> submitted{0};
  test_hooks::on_pause("transfer.before_submit", [&] { ++submitted; });
  rig.load(2, Rig::kStrided, {{BlockId(2), SlotId(5)}});
  await([&] { return submitted >= 1; }, "submission");
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  rig.valve.open(Kind::kGather);
  EXPECT_EQ(rig.finish().size(), 2U);
  EXPECT_EQ(rig.slot(Rig::kStrided, SlotId(6)), pattern_bytes(1, 128));
  EXPECT_EQ(rig.block(Rig::kStrided, BlockId(2)), pattern_bytes(2, 128));
}

TEST_F(LoadTest, RefusesGroupsBlocksAndSlotsThatDoNotExist) {
  Rig rig;
  EXPECT_THROW(rig.load(1, SlabClassId(3), {}), ProtocolError);
  EXPECT_THROW(rig.load(1, Rig::kDense, {{BlockId(64), SlotId(0)}}), ProtocolError);
  EXPECT_THROW(rig.load(1, Rig::kDense, {{BlockId(0), SlotId(160)}}), ProtocolError);
  EXPECT_TRUE(rig.finish().empty());
}

TEST_F(LoadTest, ReportsDeviceTimeAndQueueTime) {
  Rig rig({.link = {.latency = std::chrono::milliseconds(1)}});
  rig.load(1, Rig::kDense, blocks_to_slots(0, 0, 1));
  const Completion end = rig.finish_one();
  // Not how long the call took (LMCache#1755): the simulated link alone takes this long.
  EXPECT_GE(end.device_time, std::chrono::milliseconds(1));
  EXPECT_GE(end.queue_time, std::chrono::nanoseconds(0));
}

}  // namespace
}  // namespace kvferry::transfer
