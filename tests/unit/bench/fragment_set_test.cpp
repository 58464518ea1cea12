// SPDX-License-Identifier: Apache-2.0
#include "measure/fragment_set.hpp"

#include "kvferry/base/error.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace kvferry::bench {
namespace {

constexpr std::uint64_t kFragment = 512;

std::vector<gpu::CopyRun> runs_of(const FragmentSets& sets, std::uint32_t set) {
  return merged_runs(sets, set, gpu::CopyDirection::kHostToDevice, 1 << 20, 1 << 30);
}

TEST(FragmentSetsTest, PlacesAreDifferentAndInThePoolWhateverThePlacement) {
  for (const char* placement : {"contiguous", "shuffled", "runs:3", "runs:64"}) {
    const auto sets = make_fragment_sets(kFragment, 10, 4, placement_from(placement), 1);
    const std::set<BlockId> places(sets.places.begin(), sets.places.end());
    EXPECT_EQ(places.size(), 40U) << placement;
    EXPECT_LT(places.rbegin()->value(), sets.pool_fragments) << placement;
    EXPECT_EQ(to_string(placement_from(placement)), placement);
  }
}

TEST(FragmentSetsTest, NeighboursAreMergedAndNeverAcrossSets) {
  const auto count_runs = [](const char* placement, std::uint32_t set) {
    return runs_of(make_fragment_sets(kFragment, 10, 4, placement_from(placement), 1), set).size();
  };
  for (std::uint32_t set = 0; set < 4; ++set) {
    EXPECT_EQ(count_runs("contiguous", set), 1U);
    EXPECT_EQ(count_runs("shuffled", set), 10U);
    EXPECT_EQ(count_runs("runs:3", set), 4U);
  }
}

TEST(FragmentSetsTest, RunsOfASetCoverItsBytesOnBothSides) {
  const auto sets = make_fragment_sets(kFragment, 10, 2, placement_from("runs:4"), 1);
  const auto runs = runs_of(sets, 1);
  std::uint64_t bytes = 0;
  for (const gpu::CopyRun& run : runs) bytes += run.bytes;
  EXPECT_EQ(bytes, sets.set_bytes());
  EXPECT_EQ(runs.front().source, (1U << 30U) + sets.set_bytes());
}

TEST(FragmentSetsTest, UnknownPlacementsAreRefused) {
  for (const char* text : {"", "random", "runs:", "runs:0", "runs:x"}) {
    EXPECT_THROW(static_cast<void>(placement_from(text)), ConfigError) << text;
  }
}

}  // namespace
}  // namespace kvferry::bench
