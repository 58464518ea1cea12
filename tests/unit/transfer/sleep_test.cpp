// SPDX-License-Identifier: Apache-2.0
// What sleep() gives back of the device's memory, on stand-in drivers, which count it.
#include "kvferry/base/error.hpp"

#include "rig.hpp"
#include "stand_ins.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

namespace kvferry::transfer {
namespace {

constexpr int kOutOfMemory = 2;

class SleepTest : public TransferTest, public ::testing::WithParamInterface<bool> {
 protected:
  SleepTest()
      : rig_({.transfer = {.staging_bytes = 1 << 16,
                           .piece_bytes = 1000,
                           .load_staging_bytes = 4096},
              .make_device = GetParam() ? &hip_stand_in : &cuda_stand_in}) {}
  [[nodiscard]] std::uint64_t free_bytes() const { return rig_.device->memory_info().free_bytes; }
  void move_a_block(std::uint64_t transfer, std::uint64_t version) {
    rig_.write_block(Rig::kStrided, BlockId(1), version);
    ASSERT_EQ(rig_.store(transfer, Rig::kStrided, blocks_to_slots(1, 7, 1)), 1U);
    ASSERT_EQ(rig_.finish_one().outcome, Outcome::kDone);
    rig_.load(transfer + 1, Rig::kStrided, blocks_to_slots(2, 7, 1));
    const Completion end = rig_.finish_one();
    ASSERT_EQ(end.outcome, Outcome::kDone) << end.reason;
    ASSERT_EQ(rig_.block(Rig::kStrided, BlockId(2)),
              pattern_bytes(version, rig_.packed_bytes(Rig::kStrided)));
  }

  Rig rig_;
};
INSTANTIATE_TEST_SUITE_P(StandIns, SleepTest, ::testing::Bool(),
                         [](const ::testing::TestParamInfo<bool>& hip) {
                           return std::string(hip.param ? "hip" : "cuda");
                         });

TEST_P(SleepTest, GivesEveryByteBackAndTakesAsManyAgain) {
  const std::uint64_t awake = free_bytes();
  std::uint64_t pools = 0;
  for (const auto& pool : rig_.pools) pools += pool->size_bytes();
  for (std::uint64_t i = 0; i < 5; ++i) {
    move_a_block(10 * i + 1, i);
    ASSERT_TRUE(rig_.engine->sleep(kForever));
    EXPECT_EQ(rig_.device->memory_info().total_bytes - free_bytes(), pools);
    EXPECT_EQ(rig_.store(10 * i + 3, Rig::kStrided, blocks_to_slots(1, 7, 1)), 0U);
    rig_.load(10 * i + 4, Rig::kStrided, blocks_to_slots(2, 7, 1));
    EXPECT_EQ(rig_.finish_one().outcome, Outcome::kFailed);
    rig_.engine->wake(rig_.geometries);
    EXPECT_EQ(free_bytes(), awake);
  }
  move_a_block(100, 9);
}

TEST_P(SleepTest, AWakeThatFailsAnywhereTakesNothingAndMayComeAgain) {
  fakes::FakeControl& control = control_of(GetParam() ? KVFERRY_FAKE_HIP : KVFERRY_FAKE_CUDA);
  const std::uint64_t awake = free_bytes();
  ASSERT_TRUE(rig_.engine->sleep(kForever));
  const std::uint64_t asleep = free_bytes();
  std::uint64_t num_failures = 0;
  for (; rig_.engine->is_asleep(); ++num_failures) {
    control.fail_nth(GetParam() ? "hipMalloc" : "cuMemAlloc", num_failures + 1, kOutOfMemory);
    try {
      rig_.engine->wake(rig_.geometries);
      break;
    } catch (const Error&) {
      ASSERT_EQ(free_bytes(), asleep);
    }
  }
  EXPECT_EQ(num_failures, rig_.geometries.size() + 2) << "a table for each class, and two rings";
  EXPECT_EQ(free_bytes(), awake);
  control.reset();
}

}  // namespace
}  // namespace kvferry::transfer
