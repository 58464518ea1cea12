// SPDX-License-Identifier: Apache-2.0
// What of an answer of PrefixSearch is leased: which slots for which blocks, and what is refused.
#include "prefix_search.hpp"
#include "prefix_search_fixture.hpp"

#include <gtest/gtest.h>

#include <cstdint>

namespace kvferry::connector {
namespace {

TEST_F(PrefixSearchTest, AChunksMissingBlockLeavesWhatIsBeforeIt) {
  groups_ = {KvGroup{}, {TokenReach::chunk(4 * kBlockTokens)}};
  start_with_groups();
  hold(0, {0, 1, 2, 3, 4, 5, 6, 7});
  hold(1, {4, 6});
  EXPECT_EQ(find(0, 7), 5U);
  EXPECT_EQ(leased_blocks(5, {{20, 21, 22, 23, 24}, {0, 0, 0, 0, 34}}),
            (Numbers{20, 21, 22, 23, 24, 34}));
}

TEST_F(PrefixSearchTest, NullBlocksOfAWindowAreNotLoaded) {
  start({0, 8});
  hold(0, {0, 1, 2, 3});
  hold(1, {0, 1, 2, 3});
  ASSERT_EQ(find(), 4U);
  EXPECT_EQ(leased_blocks(4, {{20, 21, 22, 23}, {0, 0, 32, 33}}),
            (Numbers{20, 21, 22, 23, 32, 33}));
  EXPECT_EQ(leased_blocks(4, {{20, 21, 22, 23}, {0, 0, 0, 33}}), (Numbers{20, 21, 22, 23, 33}))
      << "the engine may need less than the window";
}

TEST_F(PrefixSearchTest, BlockZeroIsABlockWhereThereIsNoWindow) {
  start({0});
  hold(0, {0, 1});
  ASSERT_EQ(find(), 2U);
  EXPECT_EQ(leased_blocks(2, {{0, 1}}), (Numbers{0, 1}));
}

// A block that the engine expects to be filled and that nothing fills.
TEST_F(PrefixSearchTest, ABlockOutsideOfWhatIsLoadedIsRefused) {
  start({0, 8});
  hold(0, {0, 1, 2, 3});
  hold(1, {0, 1, 2, 3});
  ASSERT_EQ(find(), 4U);
  EXPECT_FALSE(lease(4, {{20, 21, 22, 23}, {0, 31, 32, 33}}));
}

TEST_F(PrefixSearchTest, EverySlotGoesToTheBlockOfItsKey) {
  start({0, 8});
  hold(1, {2, 3});
  hold(0, {0, 1, 2, 3});
  ASSERT_EQ(find(1), 3U);
  const auto blocks = lease(3, {{20, 21, 22, 23}, {0, 0, 32, 33}});
  ASSERT_TRUE(blocks);
  ASSERT_EQ(blocks->size(), 5U);
  const auto pair_of = [this](std::uint32_t block, std::uint32_t group, std::uint32_t position) {
    const cpu_tier::BlockKey& key = keys_[group][position];
    return BlockSlot{BlockId(block), tier().lookup_prefix({&key, 1}).slots.at(0), key.mixed()};
  };
  EXPECT_EQ((*blocks)[0], pair_of(21, 0, 1));
  EXPECT_EQ((*blocks)[2], pair_of(23, 0, 3));
  EXPECT_EQ((*blocks)[3], pair_of(32, 1, 2));
  EXPECT_EQ((*blocks)[4], pair_of(33, 1, 3));
}

TEST_F(PrefixSearchTest, TakingLessThanOfferedMovesTheWindow) {
  start({0, 8});
  hold(0, {0, 1, 2, 3, 4});
  hold(1, {1, 2, 3, 4});
  ASSERT_EQ(find(), 5U);
  EXPECT_EQ(leased_blocks(3, {{20, 21, 22}, {0, 31, 32}}), (Numbers{20, 21, 22, 31, 32}));
}

TEST_F(PrefixSearchTest, TakingLessThanOfferedIsRefusedIfTheWindowIsMissingThere) {
  start({0, 8});
  hold(0, {0, 1, 2, 3, 4});
  hold(1, {0, 3, 4});
  ASSERT_EQ(find(), 5U);
  EXPECT_FALSE(lease(3, {{20, 21, 22}, {0, 31, 32}}));
  EXPECT_FALSE(lease(4, {{20, 21, 22, 23}, {0, 0, 32, 33}}));
  EXPECT_TRUE(lease(1, {{20}, {30}})) << "block 0 alone is there";
}

TEST_F(PrefixSearchTest, TakingMoreThanOfferedIsRefused) {
  start({0});
  hold(0, {0, 1});
  ASSERT_EQ(find(), 2U);
  hold(0, {2});
  EXPECT_FALSE(lease(3, {{20, 21, 22}}));
}

TEST_F(PrefixSearchTest, AnAnswerFromBeforeAnEvictionIsRefused) {
  start({0, 8});
  hold(0, {0, 1, 2, 3});
  hold(1, {0, 2, 3});
  ASSERT_EQ(find(), 4U);
  forget(1, 0);
  EXPECT_FALSE(lease(4, {{20, 21, 22, 23}, {0, 0, 32, 33}}));
  ASSERT_EQ(find(), 4U);
  EXPECT_TRUE(lease(4, {{20, 21, 22, 23}, {0, 0, 32, 33}}));
}

TEST_F(PrefixSearchTest, TablesThatDoNotFitAreRefused) {
  start({0, 8});
  hold(0, {0, 1});
  hold(1, {0, 1});
  ASSERT_EQ(find(), 2U);
  EXPECT_FALSE(lease(2, {{20, 21}}));
  EXPECT_FALSE(lease(2, {{20, 21}, {30}}));
  EXPECT_FALSE(lease(2, {{20}, {30, 31}}));
  EXPECT_FALSE(lease(2, {{20, 21}, {30, 31}, {40, 41}}));
  EXPECT_TRUE(lease(2, {{20, 21}, {30, 31}}));
}

TEST_F(PrefixSearchTest, WithoutAnAnswerNothingIsLeased) {
  start({0});
  hold(0, {0, 1});
  EXPECT_FALSE(lease(1, {{20}}));
}

}  // namespace
}  // namespace kvferry::connector
