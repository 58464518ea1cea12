// SPDX-License-Identifier: Apache-2.0
#include "kernels/pack_launch.hpp"

#include "kvferry/base/error.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

namespace kvferry::gpu {
namespace {

constexpr PackDevice kHopper{132, BulkCopy::kYes};
constexpr PackDevice kAmpere{108, BulkCopy::kNo};
constexpr std::uintptr_t kPacked = 0x7000000;

/// `layers` fragments of `bytes`, as a pool with one tensor per layer has them.
BlockGeometry layered(std::uint64_t layers, std::uint64_t bytes) {
  std::vector<Fragment> fragments;
  for (std::uint64_t i = 0; i < layers; ++i) fragments.push_back({i << 32U, 2 * bytes, bytes});
  return make_block_geometry(fragments, 1000);
}

std::string kernel(const BlockGeometry& geometry, std::uintptr_t packed, const PackDevice& device,
                   const PackTuning& tuning = {}) {
  return plan_pack(geometry, 4, packed, PackWay::kGather, device, tuning).kernel;
}

TEST(PackLaunch, BulkCopiesNeedTheDeviceAndSixteenByteAlignmentOfEverything) {
  const PackTuning bulk{PackKernel::kBulk, 0, 0};
  EXPECT_EQ(kernel(layered(8, 1024), kPacked, kHopper, bulk), "kvferry_gather_bulk");
  EXPECT_EQ(kernel(layered(8, 1024), kPacked, kAmpere, bulk), "kvferry_gather");
  EXPECT_EQ(kernel(layered(8, 1024), kPacked + 8, kHopper, bulk), "kvferry_gather");
  EXPECT_EQ(kernel(layered(8, 1032), kPacked, kHopper, bulk), "kvferry_gather");
  const auto odd_base = make_block_geometry({{8, 1024, 1024}}, 10);
  EXPECT_EQ(kernel(odd_base, kPacked, kHopper, bulk), "kvferry_gather");
  const auto odd_stride = make_block_geometry({{16, 1032, 1024}}, 10);
  EXPECT_EQ(kernel(odd_stride, kPacked, kHopper, bulk), "kvferry_gather");
}

TEST(PackLaunch, ChoosesBulkCopiesUnlessFragmentsAreTiny) {
  EXPECT_EQ(kernel(layered(8, 1024), kPacked, kHopper), "kvferry_gather_bulk");
  EXPECT_EQ(kernel(layered(8, 256), kPacked, kHopper), "kvferry_gather");
  EXPECT_EQ(kernel(layered(8, 1024), kPacked, kHopper, {PackKernel::kVector, 0, 0}),
            "kvferry_gather");
}

TEST(PackLaunch, SumsAreMadeByVectorKernels) {
  const auto geometry = layered(8, 1024);
  const auto kernel = [&](PackWay way, PackSums sums) {
    return std::string(plan_pack(geometry, 4, kPacked, way, kHopper, {}, sums).kernel);
  };
  EXPECT_EQ(kernel(PackWay::kGather, PackSums::kYes), "kvferry_gather_tagged");
  EXPECT_EQ(kernel(PackWay::kScatter, PackSums::kYes), "kvferry_scatter_tagged");
  EXPECT_EQ(kernel(PackWay::kSum, PackSums::kYes), "kvferry_sum");
  EXPECT_EQ(kernel(PackWay::kSum, PackSums::kNo), "kvferry_sum");
  EXPECT_EQ(kernel(PackWay::kGather, PackSums::kNo), "kvferry_gather_bulk");
}

TEST(PackLaunch, GatherMayFillTheDeviceAndScatterLeavesItToTheForwardPass) {
  const auto geometry = layered(80, 32768);
  for (const PackDevice& device : {kHopper, kAmpere}) {
    const auto gather = plan_pack(geometry, 512, kPacked, PackWay::kGather, device);
    const auto scatter = plan_pack(geometry, 512, kPacked, PackWay::kScatter, device);
    const auto sum = plan_pack(geometry, 512, 0, PackWay::kSum, device);
    EXPECT_EQ(gather.num_ctas, 4 * device.num_multiprocessors);
    EXPECT_EQ(scatter.num_ctas, device.bulk_copy == BulkCopy::kYes ? 64U : 16U);
    EXPECT_EQ(sum.num_ctas, 16U) << "it too runs beside the forward pass";
    EXPECT_LE(gather.shared_bytes, 48U * 1024);
  }
}

TEST(PackLaunch, TheGridIsNoLargerThanTheWorkNorThanAskedFor) {
  const auto geometry = layered(1, 4096);
  EXPECT_EQ(plan_pack(geometry, 1, kPacked, PackWay::kGather, kAmpere).num_ctas, 1U);
  EXPECT_EQ(plan_pack(geometry, 17, kPacked, PackWay::kGather, kAmpere).num_ctas, 3U);
  EXPECT_EQ(plan_pack(geometry, 17, kPacked, PackWay::kGather, kHopper).num_ctas, 17U);
  const PackTuning two{PackKernel::kAuto, 2, 0};
  EXPECT_EQ(plan_pack(geometry, 17, kPacked, PackWay::kGather, kHopper, two).num_ctas, 2U);
}

TEST(PackLaunch, StagesAreKeptWithinWhatTheKernelCanUse) {
  const auto shared = [](std::uint32_t stages) {
    return plan_pack(layered(8, 1024), 4, kPacked, PackWay::kGather, kHopper,
                     {PackKernel::kBulk, 0, stages})
        .shared_bytes;
  };
  EXPECT_EQ(shared(1), shared(2));
  EXPECT_EQ(shared(0), 2 * shared(2));
  EXPECT_EQ(shared(100), shared(16));
}

TEST(PackLaunch, RefusesWhatTheUnitCountCannotHold) {
  const auto geometry = make_block_geometry({{0, 1ULL << 40U, 1ULL << 40U}}, 100);
  EXPECT_THROW(std::ignore = plan_pack(geometry, 32, kPacked, PackWay::kGather, kAmpere),
               ConfigError);
}

TEST(PackLaunch, ArgumentsAndTableSayWhatTheGeometrySays) {
  const auto geometry = make_block_geometry({{5000, 64, 33}, {1000, 16, 7}}, 10);
  const auto table = fragment_table(geometry);
  ASSERT_EQ(table.size(), 2U);
  EXPECT_EQ(table[1].base, 1000U);
  EXPECT_EQ(table[1].block_stride_bytes, 16U);
  EXPECT_EQ(table[1].bytes, 7U);
  EXPECT_EQ(table[1].packed_offset, 33U);
  const std::vector<BlockId> blocks{BlockId{7}, BlockId{3}};
  const PackArguments arguments = pack_arguments(geometry, 4096, blocks, kPacked, 8192);
  EXPECT_EQ(arguments.num_fragments, 2U);
  EXPECT_EQ(arguments.packed_bytes, 40U);
  EXPECT_EQ(arguments.packed, kPacked);
  EXPECT_EQ(arguments.sums, 8192U);
  EXPECT_EQ(arguments.num_blocks, 2U);
  EXPECT_EQ(arguments.block_ids[0], 7U);
  EXPECT_EQ(arguments.block_ids[1], 3U);
}

}  // namespace
}  // namespace kvferry::gpu
