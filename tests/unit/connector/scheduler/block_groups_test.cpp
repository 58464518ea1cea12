// SPDX-License-Identifier: Apache-2.0
#include "block_groups.hpp"

#include "scheduler_fixture.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace kvferry::connector {
namespace {

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

TEST_F(BlockGroupsTest, OfAWindowThatTheEngineKeepsLongerALoadNeedsMoreThanIsSeen) {
  // Blocks before the end of a block: for 5 tokens one, for 6 two.
  const auto num_unseen = [](std::uint32_t window, std::uint32_t unseen) {
    const std::vector<KvGroup> groups{
        {TokenReach::window(window + unseen), SlabClassId(0), 1, unseen}};
    return BlockGroups(groups, kBlockTokens).num_unseen(GroupId(0));
  };
  EXPECT_EQ(num_unseen(5, 0), 0U);
  EXPECT_EQ(num_unseen(5, 1), 1U);
  EXPECT_EQ(num_unseen(6, 1), 0U);
  EXPECT_EQ(num_unseen(6, 3), 0U);
  EXPECT_EQ(num_unseen(6, 4), 1U);
  EXPECT_EQ(num_unseen(6, 8), 2U);
  EXPECT_EQ(groups_.num_unseen(kWindow), 0U);
}

TEST_F(BlockGroupsTest, WhatALoadNeedsEndsWithItAndReachesBackAsFarAsTheNextTokenSees) {
  const auto needed = [this](GroupId group, std::uint32_t first, std::uint32_t end) {
    const BlockGroups::Range blocks = groups_.needed(group, first, end);
    return std::pair(blocks.first, blocks.last);
  };
  EXPECT_EQ(needed(kFull, 2, 5), std::pair(2U, 5U));
  // Of five blocks a window of 7 tokens needs the last two, a chunk of two blocks the last one.
  EXPECT_EQ(needed(kWindow, 0, 5), std::pair(3U, 5U));
  EXPECT_EQ(needed(kWindow, 2, 5), std::pair(3U, 5U));
  EXPECT_EQ(needed(kWindow, 4, 5), std::pair(4U, 5U)) << "the engine has the other one";
  EXPECT_EQ(needed(kChunk, 0, 5), std::pair(4U, 5U));
  EXPECT_EQ(needed(kChunk, 0, 4), std::pair(4U, 4U)) << "the next token begins a chunk";
  EXPECT_EQ(needed(kState, 1, 5), std::pair(4U, 5U));
}

TEST(BlockGroups, ALoadMayBringTheLastTokenIfTheStepBackNeedsNoOtherBlock) {
  const auto num_loadable = [](TokenReach reach, std::uint32_t num_tokens) {
    return BlockGroups(
               std::vector<KvGroup>{{TokenReach(), SlabClassId(0)}, {reach, SlabClassId(0)}},
               kBlockTokens)
        .num_loadable(num_tokens);
  };
  EXPECT_EQ(num_loadable(TokenReach(), 0), 0U);
  EXPECT_EQ(num_loadable(TokenReach(), 3), 0U);
  EXPECT_EQ(num_loadable(TokenReach(), 15), 3U);
  EXPECT_EQ(num_loadable(TokenReach(), 16), 4U);
  EXPECT_EQ(num_loadable(TokenReach(), 17), 4U);
  EXPECT_EQ(num_loadable(TokenReach::window(7), 16), 4U)
      << "token 15 sees 9 to 15, the next 10 to 16";
  EXPECT_EQ(num_loadable(TokenReach::window(9), 16), 3U) << "token 15 sees 7, the next one 8";
  EXPECT_EQ(num_loadable(TokenReach::window(40), 16), 4U);
  EXPECT_EQ(num_loadable(TokenReach::chunk(8), 16), 3U) << "the next token begins a chunk";
  EXPECT_EQ(num_loadable(TokenReach::chunk(8), 12), 3U);
  EXPECT_EQ(num_loadable(TokenReach::state(0), 16), 3U) << "a state is of one boundary";
  EXPECT_EQ(num_loadable(TokenReach::none(), 16), 3U) << "a circular buffer is empty after a load";
}

TEST(BlockGroups, LoadsEndWhereBlocksOfGroupsThatAreLeftOutEndToo) {
  const BlockGroups groups(std::vector<KvGroup>{{TokenReach(), SlabClassId(0), 2},
                                                {TokenReach::none(), SlabClassId(0), 3}},
                           kBlockTokens);
  EXPECT_EQ(groups.align(11), 6U);
  EXPECT_EQ(groups.ids().size(), 1U);
}

TEST(BlockGroups, BlocksOfSeveralPositionsEndWhereTheirLastOneDoes) {
  constexpr GroupId kFine{0};
  constexpr GroupId kCoarse{1};
  const BlockGroups groups(std::vector<KvGroup>{{TokenReach::window(6), SlabClassId(0), 2},
                                                {TokenReach(), SlabClassId(0), 3}},
                           kBlockTokens);
  EXPECT_EQ(groups.block_tokens(kCoarse), 3 * kBlockTokens);
  EXPECT_EQ(groups.num_complete(kCoarse, 5), 1U);
  EXPECT_EQ(groups.num_begun(kCoarse, 5), 2U);
  EXPECT_FALSE(groups.ends_with(kCoarse, 4));
  EXPECT_TRUE(groups.ends_with(kCoarse, 5));
  EXPECT_TRUE(groups.ends_with(kFine, 5));
  EXPECT_EQ(groups.align(11), 6U) << "at which a block ends in both";
  // A load from position 7 on brings the blocks that have it, whole.
  EXPECT_EQ(groups.needed(kCoarse, 7, 12).first, 2U);
  EXPECT_EQ(groups.needed(kCoarse, 7, 12).last, 4U);
  EXPECT_EQ(groups.needed(kFine, 7, 12).first, 5U) << "the window is shorter than a block";
  EXPECT_EQ(groups.first_kept(kFine, 12 * kBlockTokens), 5U);
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
