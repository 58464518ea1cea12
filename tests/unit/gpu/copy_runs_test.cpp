// SPDX-License-Identifier: Apache-2.0
#include "copy_runs.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace kvferry::gpu {
namespace {

std::string rejection(const std::vector<CopyRun>& runs) {
  try {
    check_copy_runs(runs);
  } catch (const DeviceError& error) {
    return error.what();
  }
  return "";
}

TEST(CopyRuns, NamesTheRunThatIsEmpty) {
  EXPECT_NE(rejection({{0x1000, 0x9000, 8}, {0x2000, 0x9008, 0}}).find("run 1"), std::string::npos);
}

TEST(CopyRuns, RejectsARunPastTheEndOfTheAddressSpace) {
  constexpr std::uintptr_t kMax = std::numeric_limits<std::uintptr_t>::max();
  EXPECT_NE(rejection({{kMax - 7, 0x9000, 8}}), "");
  EXPECT_NE(rejection({{0x1000, kMax - 7, 8}}), "");
  EXPECT_NE(rejection({{0x1000, 0x9000, kMax}}), "");
}

TEST(CopyRuns, RejectsSourceOverlappingItsDestination) {
  EXPECT_NE(rejection({{0x1000, 0x1007, 8}}).find("overlapping source"), std::string::npos);
  EXPECT_NE(rejection({{0x1007, 0x1000, 8}}).find("overlapping source"), std::string::npos);
  EXPECT_EQ(rejection({{0x1000, 0x1008, 8}}), "");
}

TEST(CopyRuns, NamesBothOverlappingDestinations) {
  const std::string why = rejection(
      {{0x3000, 0x9000, 16}, {0x1000, 0x9100, 16}, {0x100f, 0x9200, 4}, {0x2000, 0x9300, 16}});
  EXPECT_NE(why.find("16 bytes at 0x1000 and 4 bytes at 0x100f"), std::string::npos) << why;
}

TEST(CopyRuns, FindsAnOverlapBehindALongerRunThatContainsIt) {
  EXPECT_NE(rejection({{0x1000, 0x9000, 64}, {0x1010, 0x9100, 1}, {0x1020, 0x9200, 1}}), "");
}

TEST(CopyRuns, FindsTheOneOverlapAmongManyInAnyOrder) {
  std::mt19937_64 random(1);
  for (const std::uintptr_t size : {std::uintptr_t{1}, std::uintptr_t{24}, std::uintptr_t{4096}}) {
    // The pool reaches over a border of many bits, so that high and low ones differ.
    const std::uintptr_t pool = (std::uintptr_t{1} << 40U) - 100 * size;
    std::vector<CopyRun> runs;
    for (std::uintptr_t i = 0; i < 300; ++i) runs.push_back({pool + i * size, 0x1000, size});
    for (int round = 0; round < 20; ++round) {
      std::shuffle(runs.begin(), runs.end(), random);
      ASSERT_EQ(rejection(runs), "") << size;
      std::vector<CopyRun> overlapping = runs;
      overlapping[random() % runs.size()].destination = runs[random() % runs.size()].destination;
      const auto same = [](const CopyRun& a, const CopyRun& b) {
        return a.destination == b.destination;
      };
      if (std::equal(runs.begin(), runs.end(), overlapping.begin(), same)) continue;
      ASSERT_NE(rejection(overlapping), "") << size;
    }
  }
}

TEST(CopyRuns, SumsTheBytes) {
  const std::vector<CopyRun> runs = {{0, 0, 3}, {0, 0, 5}, {0, 0, std::uint64_t{1} << 40U}};
  EXPECT_EQ(total_bytes(runs), (std::uint64_t{1} << 40U) + 8);
  EXPECT_EQ(total_bytes({}), 0U);
}

}  // namespace
}  // namespace kvferry::gpu
