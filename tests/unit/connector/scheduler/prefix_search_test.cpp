// SPDX-License-Identifier: Apache-2.0
#include "prefix_search.hpp"

#include "one_class.hpp"
#include "prefix_search_fixture.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <set>
#include <span>
#include <utility>
#include <vector>

namespace kvferry::connector {
namespace {

TEST_F(PrefixSearchTest, AFullGroupServesItsPrefix) {
  start({0});
  hold(0, {0, 1, 2, 4});
  EXPECT_EQ(find(), 3U);
  EXPECT_EQ(find(0, 2), 2U);
  EXPECT_EQ(find(1), 2U);
  EXPECT_EQ(find(3), 0U);
  EXPECT_EQ(find(4), 1U);
  EXPECT_EQ(find(10), 0U);
}

TEST_F(PrefixSearchTest, SeveralFullGroupsServeTheShortest) {
  start({0, 0});
  hold(0, {0, 1, 2, 3});
  hold(1, {0, 1});
  EXPECT_EQ(find(), 2U);
  EXPECT_EQ(leased_blocks(2, {{20, 21}, {30, 31}}), (Numbers{20, 21, 30, 31}));
}

TEST_F(PrefixSearchTest, AWindowNeedsOnlyTheBlocksThatItReachesBackTo) {
  start({0, 8});  // The next token sees 7 before itself: two blocks.
  hold(0, {0, 1, 2, 3, 4, 5});
  hold(1, {4, 5});
  EXPECT_EQ(find(), 6U);
  EXPECT_EQ(answer_.hits[0].size(), 6U);
  EXPECT_EQ(answer_.hits[1].size(), 2U);
}

TEST(PrefixSearch, HowManyBlocksAWindowReachesBackTo) {
  const auto least_held = [](std::uint32_t window_tokens) {
    std::uint32_t held = 0;
    for (;; ++held) {
      const std::vector<KvGroup> groups = {KvGroup{}, {TokenReach::window(window_tokens)}};
      const std::unique_ptr<cpu_tier::Tier> whole = tier_of(groups, 100);
      const cpu_tier::OneClass tier(*whole, SlabClassId(0));
      const BlockGroups block_groups(groups, kBlockTokens);
      const PrefixSearch search(*whole, block_groups);
      const GroupKeys keys = keys_of({0, 1, 2, 3, 4, 5}, 2);
      const auto commit = [&tier](std::span<const cpu_tier::BlockKey> held_keys) {
        tier.commit(std::move(tier.reserve(held_keys)).value().hand_over());
      };
      commit(keys[0]);
      if (held > 0) commit(std::span(keys[1]).last(held));
      if (search.find(keys, 0, 6).end == 6) return held;
    }
  };
  EXPECT_EQ(least_held(1), 0U) << "a token that sees itself only";
  EXPECT_EQ(least_held(2), 1U);
  EXPECT_EQ(least_held(5), 1U);
  EXPECT_EQ(least_held(6), 2U);
  EXPECT_EQ(least_held(9), 2U);
  EXPECT_EQ(least_held(10), 3U);
}

TEST_F(PrefixSearchTest, AWindowThatHasNothingServesNothing) {
  start({0, 8});
  hold(0, {0, 1, 2, 3});
  EXPECT_EQ(find(), 0U);
}

TEST_F(PrefixSearchTest, AHoleInTheWindowMakesTheHitShorter) {
  start({0, 8});
  hold(0, {0, 1, 2, 3, 4, 5});
  hold(1, {1, 2, 3, 5});
  EXPECT_EQ(find(), 4U) << "blocks 2 and 3";
  EXPECT_EQ(answer_.hits[1].size(), 2U);
}

TEST_F(PrefixSearchTest, AWindowMayReachBackIntoWhatTheEngineHasItself) {
  start({0, 12});  // Three blocks.
  hold(0, {0, 1, 2, 3, 4, 5});
  hold(1, {3});
  EXPECT_EQ(find(3), 1U);
  EXPECT_EQ(find(2), 0U) << "block 2 is missing";
  EXPECT_EQ(find(0), 0U);
  hold(1, {4});
  EXPECT_EQ(find(3), 2U);
}

TEST_F(PrefixSearchTest, AShorterPrefixOfTheFullGroupMovesTheWindow) {
  start({0, 8});
  hold(0, {0, 1, 2, 3});
  hold(1, {4, 5});
  EXPECT_EQ(find(), 0U);
  hold(1, {2, 3});
  EXPECT_EQ(find(), 4U);
}

TEST_F(PrefixSearchTest, OneWindowsHoleMovesTheOther) {
  start({0, 8, 16});  // Two blocks and four.
  hold(0, {0, 1, 2, 3, 4, 5, 6, 7, 8});
  hold(1, {3, 4, 7, 8});
  hold(2, {1, 2, 3, 4, 5, 6, 7});
  // 9: the third misses block 8. 8: the second misses block 6. 5 suits both.
  EXPECT_EQ(find(), 5U);
  EXPECT_EQ(answer_.hits[1].size(), 2U);
  EXPECT_EQ(answer_.hits[2].size(), 4U);
}

TEST_F(PrefixSearchTest, AJunctionIsWhereFullAttentionGoesOnWithoutTheOtherGroups) {
  start({0, 8});
  hold(0, {0, 1, 2, 3, 4});
  EXPECT_EQ(find(), 0U);
  EXPECT_EQ(answer_.junction(), 5U);
  EXPECT_EQ(find(2), 0U);
  EXPECT_EQ(answer_.junction(), 5U) << "the engine has the first blocks itself";
  EXPECT_EQ(find(5), 0U);
  EXPECT_EQ(answer_.junction(), 0U) << "it has all of them";
  hold(1, {1, 2});
  EXPECT_EQ(find(), 3U);
  EXPECT_EQ(answer_.junction(), 5U);
  hold(1, {3, 4});
  EXPECT_EQ(find(), 5U);
  EXPECT_EQ(answer_.junction(), 0U);
}

TEST_F(PrefixSearchTest, WindowsAloneHaveNoJunction) {
  start({8, 8});
  hold(0, {0, 1, 2});
  EXPECT_EQ(find(), 0U);
  EXPECT_EQ(answer_.junction(), 0U);
}

TEST_F(PrefixSearchTest, AChunkNeedsTheBlocksFromItsBeginningOn) {
  groups_ = {KvGroup{}, {TokenReach::chunk(3 * kBlockTokens)}};
  start_with_groups();
  hold(0, {0, 1, 2, 3, 4, 5, 6, 7});
  EXPECT_EQ(find(0, 8), 6U) << "the next token begins a chunk, and sees nothing before it";
  EXPECT_EQ(answer_.hits[1].size(), 0U);
  hold(1, {7});
  EXPECT_EQ(find(0, 8), 6U) << "block 6 is missing";
  hold(1, {6});
  EXPECT_EQ(find(0, 8), 8U);
  EXPECT_EQ(answer_.hits[1].size(), 2U);
  EXPECT_EQ(find(7, 8), 1U) << "the engine has block 6 itself";
  EXPECT_EQ(answer_.hits[1].size(), 1U);
  EXPECT_EQ(find(0, 5), 3U);
}

/// The same by trying every length, with blocks of one, two or three positions in a group.
TEST(PrefixSearch, FindsTheLongestPrefixThatEveryGroupServesWhateverIsHeld) {
  constexpr std::uint32_t kMostHashes = 13;
  std::mt19937 random(5);
  const auto below = [&random](std::uint32_t bound) {
    return static_cast<std::uint32_t>(random() % bound);
  };
  std::uint32_t num_hits = 0;
  for (int round = 0; round < 4000; ++round) {
    std::vector<KvGroup> groups;
    const std::uint32_t num_groups = 1 + below(4);
    // Of each group, what the token behind `end` sees: from here on.
    std::vector<std::function<std::uint32_t(std::uint32_t end)>> first_seen;
    std::uint32_t hit_length = 1;
    for (std::uint32_t i = 0; i < num_groups; ++i) {
      // In half of the rounds all of them are of one position.
      const std::uint32_t length = round % 2 == 0 ? 1 : 1 + below(3);
      hit_length = std::lcm(hit_length, length);
      const std::uint32_t window = 1 + below(40);
      const std::uint32_t chunk = length * kBlockTokens * (1 + below(4));
      switch (below(4)) {
        case 0:
          groups.push_back({TokenReach::window(window)});
          first_seen.emplace_back(
              [=](std::uint32_t end) { return end + 1 - std::min(end + 1, window); });
          break;
        case 1:
          groups.push_back({TokenReach::chunk(chunk)});
          first_seen.emplace_back([=](std::uint32_t end) { return end - end % chunk; });
          break;
        default:
          groups.push_back({});
          first_seen.emplace_back([](std::uint32_t) { return 0U; });
      }
      groups.back().hashes_per_block = length;
    }
    const std::unique_ptr<cpu_tier::Tier> whole = tier_of(groups, 64);
    const cpu_tier::OneClass tier(*whole, SlabClassId(0));
    const BlockGroups block_groups(groups, kBlockTokens);
    const PrefixSearch search(*whole, block_groups);
    GroupKeys keys(num_groups);
    std::set<std::pair<std::uint32_t, std::uint32_t>> held;
    for (std::uint32_t group = 0; group < num_groups; ++group) {
      for (std::uint32_t at = 0; at < kMostHashes / groups[group].hashes_per_block; ++at) {
        keys[group].push_back(key_of(at, GroupId(group)));
        if (below(5) == 0) continue;
        held.emplace(group, at);
        tier.commit(std::move(tier.reserve({&keys[group][at], 1})).value().hand_over());
      }
    }
    const std::uint32_t local = below(4) / hit_length * hit_length;
    const std::uint32_t limit = below(kMostHashes + 1);
    // Local ones are there.
    const auto serves = [&](std::uint32_t end) {
      if (end % hit_length != 0) return false;
      for (std::uint32_t group = 0; group < num_groups; ++group) {
        const std::uint32_t seen = first_seen[group](end * kBlockTokens);
        for (std::uint32_t token = std::max(seen, local * kBlockTokens); token < end * kBlockTokens;
             ++token) {
          const std::uint32_t block = token / (kBlockTokens * groups[group].hashes_per_block);
          if (!held.contains({group, block})) return false;
        }
      }
      return true;
    };
    std::uint32_t longest = std::max(local, limit);
    while (longest > local && !serves(longest)) --longest;
    const LookupAnswer answer = search.find(keys, local, limit);
    ASSERT_EQ(answer.end, longest) << "round " << round;
    if (answer.is_hit()) ++num_hits;
  }
  EXPECT_GT(num_hits, 400U);
}

TEST_F(PrefixSearchTest, WhatOfAnEarlierAnswerStillHoldsIsKept) {
  start({0, 8});
  hold(0, {0, 1, 2});
  hold(1, {1, 2, 3});
  ASSERT_EQ(find(), 3U);
  hold(0, {3});
  LookupAnswer longer = search_->find(keys_, 0, 10, std::move(answer_));
  EXPECT_EQ(longer.end, 4U);
  answer_ = std::move(longer);
  forget(0, 2);
  EXPECT_FALSE(search_->find(keys_, 0, 10, std::move(answer_)).is_hit())
      << "the window now needs blocks 0 and 1";
}

}  // namespace
}  // namespace kvferry::connector
