// SPDX-License-Identifier: Apache-2.0
// Stores and loads by each way across the link on the vendors' back ends, on stand-in drivers.

#include "rig.hpp"
#include "stand_ins.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

namespace kvferry::transfer {
namespace {

using gpu::CopyPath;

class DriverPathTest
    : public TransferTest,
      public ::testing::WithParamInterface<std::tuple<bool, std::optional<CopyPath>>> {};
INSTANTIATE_TEST_SUITE_P(StandIns, DriverPathTest,
                         ::testing::Combine(::testing::Bool(),
                                            ::testing::Values(std::nullopt,
                                                              std::optional(CopyPath::kPerRun),
                                                              std::optional(CopyPath::kBatch),
                                                              std::optional(CopyPath::kKernel),
                                                              std::optional(CopyPath::kStaged))),
                         [](const ::testing::TestParamInfo<DriverPathTest::ParamType>& instance) {
                           const std::optional<CopyPath> path = std::get<1>(instance.param);
                           return std::string(std::get<0>(instance.param) ? "hip_" : "cuda_") +
                                  (path ? gpu::to_string(*path) : "chosen");
                         });

TEST_P(DriverPathTest, WhatWasStoredIsLoadedIntoOtherBlocks) {
  const auto& [hip, path] = GetParam();
  Rig rig({.transfer = {.staging_bytes = 1 << 16,
                        .piece_bytes = 1000,
                        .copy_path = path,
                        .load_staging_bytes = 4096},
           .make_device = hip ? &hip_stand_in : &cuda_stand_in});
  for (std::uint32_t g = 0; g < 3; ++g) {
    const SlabClassId slab_class(g);
    for (std::uint32_t b = 0; b < 64; ++b) rig.write_block(slab_class, BlockId(b), g * 1000 + b);
    // Across the border of two registrations.
    ASSERT_EQ(rig.store(10 * g + 1, slab_class, blocks_to_slots(0, 50, 20)), 20U);
    ASSERT_EQ(rig.finish_one().outcome, Outcome::kDone);
    rig.load(10 * g + 2, slab_class, blocks_to_slots(30, 50, 20));
    const Completion end = rig.finish_one();
    ASSERT_EQ(end.outcome, Outcome::kDone) << end.reason;
    for (std::uint32_t i = 0; i < 20; ++i) {
      ASSERT_EQ(rig.block(slab_class, BlockId(30 + i)),
                pattern_bytes(g * 1000 + i, rig.packed_bytes(slab_class)))
          << i;
    }
  }
  const std::string paths = rig.engine->copy_paths_text();
  EXPECT_NE(paths.find("\n  measured "), std::string::npos)
      << "real times are learned from: " << paths;
  EXPECT_EQ(rig.engine->stats().load_staging_size_bytes != 0, !path || *path == CopyPath::kStaged);
}

// LMCache#5067: beside an engine that computes, a scatter of normal priority waits for its kernels.
TEST_P(DriverPathTest, TheStreamsOfTheEngineAreUrgentAndThoseOfOthersAreNot) {
  const auto& [hip, path] = GetParam();
  Rig rig({.transfer = {.copy_path = path}, .make_device = hip ? &hip_stand_in : &cuda_stand_in});
  std::vector<int> priorities =
      control_of(hip ? KVFERRY_FAKE_HIP : KVFERRY_FAKE_CUDA).stream_priorities();
  const auto urgent = std::count(priorities.begin(), priorities.end(), hip ? -1 : -5);
  // Copies in and out; and two for scatters.
  EXPECT_EQ(urgent, !path || *path == CopyPath::kStaged ? 4 : 2);
  // The test's and the compute stream.
  EXPECT_EQ(std::count(priorities.begin(), priorities.end(), 0), 2);
}

}  // namespace
}  // namespace kvferry::transfer
