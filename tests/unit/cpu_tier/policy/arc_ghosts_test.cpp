// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/policy/arc_ghosts.hpp"

#include <gtest/gtest.h>

namespace kvferry::cpu_tier {
namespace {

TEST(ArcGhosts, GhostOfProbationEnlargesItsShareAndOneOfTheProtectedShrinksIt) {
  ArcGhosts arc(10);
  arc.resize(10);
  EXPECT_EQ(arc.take(1), Segment::kProbation);
  EXPECT_FLOAT_EQ(arc.probation_share(), 0);
  arc.evicted(1, Segment::kProbation, 5);
  arc.evicted(2, Segment::kProtected, 5);
  EXPECT_EQ(arc.take(1), Segment::kProtected);
  EXPECT_FLOAT_EQ(arc.probation_share(), 0.1F);
  EXPECT_EQ(arc.take(1), Segment::kProbation);  // It is no ghost any more.
  EXPECT_EQ(arc.take(2), Segment::kProtected);
  EXPECT_FLOAT_EQ(arc.probation_share(), 0);
}

TEST(ArcGhosts, RareGhostCountsForMore) {
  ArcGhosts arc(10);
  arc.resize(10);
  arc.evicted(1, Segment::kProbation, 0);
  for (std::uint64_t i = 2; i < 6; ++i) arc.evicted(i, Segment::kProtected, 0);
  EXPECT_EQ(arc.take(1), Segment::kProtected);
  EXPECT_FLOAT_EQ(arc.probation_share(), 0.4F);
}

TEST(ArcGhosts, AreNeverMoreThanSlots) {
  ArcGhosts arc(4);  // One more than there is room for would stop the process.
  arc.resize(4);
  for (std::uint64_t i = 0; i < 100; ++i) {
    arc.evicted(i, i % 3 == 0 ? Segment::kProbation : Segment::kProtected, i % 5);
  }
  EXPECT_EQ(arc.take(0), Segment::kProbation);
}

}  // namespace
}  // namespace kvferry::cpu_tier
