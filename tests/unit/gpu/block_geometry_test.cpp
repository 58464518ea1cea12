// SPDX-License-Identifier: Apache-2.0
#include "kvferry/gpu/block_geometry.hpp"

#include "kvferry/base/error.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace kvferry::gpu {
namespace {

/// The message of the ConfigError that the geometry is refused with; empty if it is not.
std::string refusal(std::vector<Fragment> fragments, std::uint32_t num_blocks) {
  try {
    std::ignore = make_block_geometry(std::move(fragments), num_blocks);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(BlockGeometry, PacksFragmentsInTheOrderGivenWithoutPadding) {
  const auto geometry = make_block_geometry({{5000, 64, 33}, {1000, 16, 7}, {9000, 8, 8}}, 10);
  ASSERT_EQ(geometry.fragments.size(), 3U);
  EXPECT_EQ(geometry.packed_offsets, (std::vector<std::uint64_t>{0, 33, 40}));
  EXPECT_EQ(geometry.packed_bytes, 48U);
  EXPECT_EQ(geometry.num_blocks, 10U);
}

TEST(BlockGeometry, AddressesEachBlocksPieceByItsStride) {
  const auto geometry = make_block_geometry({{5000, 64, 33}, {1000, 16, 7}}, 10);
  EXPECT_EQ(geometry.fragment_address(0, BlockId(0)), 5000U);
  EXPECT_EQ(geometry.fragment_address(0, BlockId(9)), 5576U);
  EXPECT_EQ(geometry.fragment_address(1, BlockId(3)), 1048U);
}

TEST(BlockGeometry, AddressesPoolsBeyondFourGiB) {
  constexpr std::uint64_t kStride = 3U << 20U;
  const auto geometry = make_block_geometry({{4096, kStride, kStride}}, 100'000);
  EXPECT_EQ(geometry.fragment_address(0, BlockId(99'999)), 4096 + 99'999 * kStride);
}

TEST(BlockGeometry, MergesACrossLayerLayoutIntoOneFragment) {
  const auto geometry = make_block_geometry({{1000, 96, 32}, {1032, 96, 32}, {1064, 96, 32}}, 10);
  ASSERT_EQ(geometry.fragments.size(), 1U);
  EXPECT_EQ(geometry.fragments[0].base, 1000U);
  EXPECT_EQ(geometry.fragments[0].bytes, 96U);
  EXPECT_EQ(geometry.packed_offsets, (std::vector<std::uint64_t>{0}));
  EXPECT_EQ(geometry.packed_bytes, 96U);
}

TEST(BlockGeometry, KeepsNeighboursApartThatDoNotTouchOrDifferInStrideOrOrder) {
  EXPECT_EQ(make_block_geometry({{1000, 96, 32}, {1033, 96, 32}}, 2).fragments.size(), 2U);
  EXPECT_EQ(make_block_geometry({{1000, 96, 32}, {1032, 97, 32}}, 2).fragments.size(), 2U);
  EXPECT_EQ(make_block_geometry({{1032, 96, 32}, {1000, 96, 32}}, 2).fragments.size(), 2U);
}

TEST(BlockGeometry, KeepsLayersApartWhenAPoolOfOneBlockMakesThemTouch) {
  const auto geometry = make_block_geometry({{1000, 32, 32}, {1032, 32, 32}}, 1);
  EXPECT_EQ(geometry.fragments.size(), 2U);
  EXPECT_EQ(geometry.packed_bytes, 64U);
}

TEST(BlockGeometry, RefusesWhatCannotBeAPoolAndNamesTheFragment) {
  EXPECT_NE(refusal({}, 10), "");
  EXPECT_NE(refusal({{1000, 16, 16}}, 0), "");
  EXPECT_NE(refusal({{1000, 16, 16}, {2000, 16, 0}}, 10).find("fragment 1"), std::string::npos);
  EXPECT_NE(refusal({{1000, 16, 17}, {2000, 16, 16}}, 10).find("fragment 0"), std::string::npos);
  EXPECT_EQ(refusal({{1000, 16, 16}, {2000, 16, 16}}, 10), "");
}

TEST(BlockGeometry, RefusesAFragmentPastTheEndOfTheAddressSpace) {
  constexpr std::uint64_t kMax = std::numeric_limits<std::uint64_t>::max();
  EXPECT_NE(refusal({{kMax - 100, 16, 16}}, 10).find("fragment 0"), std::string::npos);
  EXPECT_NE(refusal({{1000, kMax / 2, 16}}, 3).find("fragment 0"), std::string::npos);
  EXPECT_EQ(refusal({{kMax - 160, 16, 16}}, 10), "");
}

}  // namespace
}  // namespace kvferry::gpu
