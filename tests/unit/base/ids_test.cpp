// SPDX-License-Identifier: Apache-2.0
#include "kvferry/base/ids.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <type_traits>

namespace kvferry {
namespace {

static_assert(!std::is_same_v<BlockId, SlotId>, "a block is not its slot");
static_assert(!std::is_same_v<TransferId, Generation> && !std::is_same_v<TransferId, PlanSeq>);
static_assert(!std::is_same_v<GroupId, RankId>);
static_assert(sizeof(BlockSlot) == 16, "plans carry many of them");

TEST(Ids, CountersDoNotWrapAtThirtyTwoBits) {
  constexpr std::uint64_t kLast = std::numeric_limits<std::uint32_t>::max();
  EXPECT_EQ(TransferId(kLast).next().value(), kLast + 1);
  EXPECT_EQ(Generation(kLast).next().value(), kLast + 1);
  EXPECT_EQ(PlanSeq(kLast).next().value(), kLast + 1);
}

TEST(Ids, BlockSlotsAreEqualOnlyIfAllPartsAre) {
  const BlockSlot pair{BlockId(1), SlotId(2)};
  EXPECT_EQ(pair, (BlockSlot{BlockId(1), SlotId(2)}));
  EXPECT_NE(pair, (BlockSlot{BlockId(1), SlotId(3)}));
  EXPECT_NE(pair, (BlockSlot{BlockId(3), SlotId(2)}));
  EXPECT_NE(pair, (BlockSlot{BlockId(1), SlotId(2), 4}));
}

}  // namespace
}  // namespace kvferry
