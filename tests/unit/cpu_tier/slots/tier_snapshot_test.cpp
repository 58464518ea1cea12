// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/slots/tier_snapshot.hpp"

#include <gtest/gtest.h>

#include <limits>

namespace kvferry::cpu_tier {
namespace {

TEST(TierSnapshot, IsConservedOnlyIfEveryCountIsInTheSum) {
  const TierSnapshot whole{1, 2, 4, 8, 16, 32, 64, 127, 0, 0, 0, 0};
  EXPECT_TRUE(whole.conserved());
  for (const auto count :
       {&TierSnapshot::num_free, &TierSnapshot::num_writable, &TierSnapshot::num_aborted,
        &TierSnapshot::num_evictable, &TierSnapshot::num_leased, &TierSnapshot::num_dying,
        &TierSnapshot::num_quarantined, &TierSnapshot::num_slots}) {
    TierSnapshot lost = whole;
    --(lost.*count);
    EXPECT_FALSE(lost.conserved());
  }
}

TEST(TierSnapshot, SumThatWrapsIsNotConserved) {
  TierSnapshot wrapped;
  wrapped.num_free = std::numeric_limits<std::uint32_t>::max();
  wrapped.num_writable = 2;
  wrapped.num_slots = 1;
  EXPECT_FALSE(wrapped.conserved());
}

}  // namespace
}  // namespace kvferry::cpu_tier
