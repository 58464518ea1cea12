// SPDX-License-Identifier: Apache-2.0
#include "block_groups.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace kvferry::connector {
namespace {

constexpr std::uint32_t kBlockTokens = 4;

/// Full attention, a window of 7 tokens, chunks of two blocks, and a state without drafts.
class BlockGroupsTest : public ::testing::Test {
 protected:
  static constexpr GroupId kFull{0};
  static constexpr GroupId kWindow{1};
  static constexpr GroupId kChunk{2};
  static constexpr GroupId kState{3};

  BlockGroups groups_{std::vector<KvGroup>{{TokenReach(), SlabClassId(0)},
                                           {TokenReach::window(7), SlabClassId(1)},
                                           {TokenReach::chunk(8), SlabClassId(0)},
                                           {TokenReach::state(0), SlabClassId(2)}},
                      kBlockTokens};
};

TEST_F(BlockGroupsTest, AGroupIsOfItsSlabClass) {
  EXPECT_EQ(groups_.class_of(kWindow), SlabClassId(1));
  EXPECT_EQ(groups_.class_of(GroupId(3)), SlabClassId(2));
  EXPECT_TRUE(groups_.has(GroupId(3)));
  EXPECT_FALSE(groups_.has(GroupId(4)));
  EXPECT_TRUE(std::ranges::equal(groups_.ids(), std::vector{kFull, kWindow, kChunk, kState}));
}

TEST_F(BlockGroupsTest, AWindowKeepsTheBlocksThatTheNextTokenSees) {
  for (std::uint32_t num_computed = 0; num_computed < 40; ++num_computed) {
    EXPECT_EQ(groups_.first_kept(kFull, num_computed), 0U);
    const std::uint32_t first_seen = num_computed < 7 ? 0 : num_computed - 6;
    EXPECT_EQ(groups_.first_kept(kWindow, num_computed), first_seen / kBlockTokens) << num_computed;
  }
}

TEST_F(BlockGroupsTest, WhatIsNeededIsCountedFromTheLocalBlocksOn) {
  EXPECT_EQ(groups_.first_needed(kFull, 2, 3), 0U);
  // Of five blocks a window of 7 tokens needs the last two, a chunk of two blocks the last one.
  EXPECT_EQ(groups_.first_needed(kWindow, 0, 5), 3U);
  EXPECT_EQ(groups_.first_needed(kWindow, 2, 3), 1U);
  EXPECT_EQ(groups_.first_needed(kWindow, 4, 1), 0U) << "the engine has the other one";
  EXPECT_EQ(groups_.first_needed(kChunk, 0, 5), 4U);
  EXPECT_EQ(groups_.first_needed(kChunk, 0, 4), 4U) << "the next token begins a chunk";
  EXPECT_EQ(groups_.first_needed(kState, 1, 4), 3U);
}

TEST_F(BlockGroupsTest, OnlyAGroupThatDropsBlocksHasNullBlocks) {
  EXPECT_FALSE(groups_.is_null(kFull, kNullBlock));
  for (const GroupId group : {kWindow, kChunk, kState}) {
    EXPECT_TRUE(groups_.is_null(group, kNullBlock));
    EXPECT_FALSE(groups_.is_null(group, BlockId(1)));
  }
}

TEST_F(BlockGroupsTest, AStateIsLoadedWholeAndSettlesInItsStepWithoutDrafts) {
  EXPECT_TRUE(groups_.may_leave_out(kWindow));
  EXPECT_FALSE(groups_.may_leave_out(kState));
  EXPECT_TRUE(groups_.settles_in_step(kState));
  const BlockGroups drafts(std::vector<KvGroup>{{TokenReach::state(2)}}, kBlockTokens);
  EXPECT_FALSE(drafts.settles_in_step(GroupId(0)));
}

}  // namespace
}  // namespace kvferry::connector
