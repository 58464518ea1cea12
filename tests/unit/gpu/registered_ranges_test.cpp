// SPDX-License-Identifier: Apache-2.0
#include "registered_ranges.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace kvferry::gpu {
namespace {

bool accepts(const RegisteredRanges& ranges, std::uintptr_t host, std::uint64_t bytes) {
  const CopyRun load{0x900000, host, bytes};
  const CopyRun store{host, 0x900000, bytes};
  const auto check = [&](CopyDirection direction, const CopyRun& run) {
    try {
      ranges.check(direction, {&run, 1});
    } catch (const DeviceError&) {
      return false;
    }
    return true;
  };
  const bool accepted = check(CopyDirection::kHostToDevice, load);
  EXPECT_EQ(check(CopyDirection::kDeviceToHost, store), accepted) << "the sides were mixed up";
  return accepted;
}

TEST(RegisteredRanges, AcceptsExactlyWhatLiesWithinOneRange) {
  RegisteredRanges ranges;
  EXPECT_FALSE(accepts(ranges, 0x1000, 1));
  ranges.add(0x1000, 0x100);
  ranges.add(0x1100, 0x100);
  EXPECT_TRUE(accepts(ranges, 0x1000, 0x100));
  EXPECT_TRUE(accepts(ranges, 0x10ff, 1));
  EXPECT_TRUE(accepts(ranges, 0x1100, 0x100));
  EXPECT_FALSE(accepts(ranges, 0xfff, 1));
  EXPECT_FALSE(accepts(ranges, 0xfff, 2));
  EXPECT_FALSE(accepts(ranges, 0x1000, 0x101)) << "reaches into the next range";
  EXPECT_FALSE(accepts(ranges, 0x1200, 1));
  EXPECT_FALSE(accepts(ranges, 0x1180, ~std::uint64_t{0}));
}

TEST(RegisteredRanges, ChecksEveryRunOfABatch) {
  RegisteredRanges ranges;
  ranges.add(0x1000, 0x100);
  ranges.add(0x3000, 0x100);
  std::vector<CopyRun> runs = {{0x3080, 1, 8}, {0x1000, 1, 8}, {0x3000, 1, 8}};
  EXPECT_NO_THROW(ranges.check(CopyDirection::kDeviceToHost, runs));
  runs.push_back({0x2000, 1, 8});
  EXPECT_THROW(ranges.check(CopyDirection::kDeviceToHost, runs), DeviceError);
}

TEST(RegisteredRanges, RejectsOverlapFromEitherSideAndKeepsTheOldRange) {
  RegisteredRanges ranges;
  ranges.add(0x1000, 0x100);
  EXPECT_THROW(ranges.add(0xf00, 0x101), DeviceError);
  EXPECT_THROW(ranges.add(0x10ff, 1), DeviceError);
  EXPECT_THROW(ranges.add(0x1000, 0x100), DeviceError);
  EXPECT_THROW(ranges.add(0x800, 0x1000), DeviceError);
  EXPECT_EQ(ranges.num_ranges(), 1U);
  EXPECT_TRUE(accepts(ranges, 0x1000, 0x100));
}

TEST(RegisteredRanges, ForgetsARemovedRange) {
  RegisteredRanges ranges;
  ranges.add(0x1000, 0x100);
  ranges.remove(0x1000);
  EXPECT_EQ(ranges.num_ranges(), 0U);
  EXPECT_FALSE(accepts(ranges, 0x1000, 1));
  EXPECT_NO_THROW(ranges.add(0x1010, 0x10));
}

}  // namespace
}  // namespace kvferry::gpu
