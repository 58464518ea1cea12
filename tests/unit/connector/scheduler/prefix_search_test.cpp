// SPDX-License-Identifier: Apache-2.0
#include "prefix_search.hpp"

#include "engine_tier.hpp"
#include "fake_engine.hpp"
#include "one_class.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <utility>
#include <vector>

namespace kvferry::connector {
namespace {

constexpr std::uint32_t kBlockTokens = 4;

/// Of one class, ready.
std::unique_ptr<cpu_tier::Tier> tier_of(const std::vector<KvGroup>& groups,
                                        std::uint32_t num_slots) {
  SchedulerOptions options;
  options.groups = groups;
  options.classes = {{1, {1}}};
  options.max_chunks = num_slots;
  auto tier = make_tier(options);
  tier->grow_to(num_slots);
  return tier;
}

/// Keys of these numbers in each group.
GroupKeys keys_of(const std::vector<std::uint64_t>& numbers, std::size_t num_groups) {
  GroupKeys keys(num_groups);
  for (std::uint32_t group = 0; group < num_groups; ++group) {
    for (const std::uint64_t number : numbers) {
      keys[group].push_back(key_of(number, GroupId(group)));
    }
  }
  return keys;
}

/// A request whose block at position i has the key i in every group, and a tier in which each group
/// holds some of them.
class PrefixSearchTest : public ::testing::Test {
 protected:
  using Numbers = std::vector<std::uint32_t>;

  /// `windows`: of each group, in tokens; 0 is full attention.
  void start(const Numbers& windows, std::uint32_t num_keys = 10) {
    for (const std::uint32_t window : windows) {
      groups_.push_back({window == 0 ? TokenReach() : TokenReach::window(window)});
    }
    start_with_groups(num_keys);
  }
  /// With groups_.
  void start_with_groups(std::uint32_t num_keys = 10) {
    tier_ = tier_of(groups_, 200);
    block_groups_ = std::make_unique<BlockGroups>(groups_, kBlockTokens);
    search_ = std::make_unique<PrefixSearch>(*tier_, *block_groups_);
    std::vector<std::uint64_t> numbers;
    for (std::uint64_t i = 0; i < num_keys; ++i) numbers.push_back(i);
    keys_ = keys_of(numbers, groups_.size());
  }
  void hold(std::uint32_t group, const Numbers& positions) {
    for (const std::uint32_t at : positions) {
      auto reserved = tier().reserve({&keys_.at(group).at(at), 1});
      ASSERT_TRUE(reserved.ok());
      tier().commit(std::move(reserved).value().hand_over());
    }
  }
  void forget(std::uint32_t group, std::uint32_t position) {
    auto lease = tier().lease({&keys_.at(group).at(position), 1});
    ASSERT_TRUE(lease.ok());
    cpu_tier::Lease held = std::move(lease).value();
    tier().forget(held);
    tier().release(std::move(held));
  }
  /// Blocks after the local ones; the answer is kept.
  std::uint32_t find(std::uint32_t num_local = 0, std::uint32_t limit = 10) {
    answer_ = search_->find(keys_, num_local, limit);
    return answer_.num_blocks;
  }
  /// Leases with these tables; the positions that were leased, by group, as far as they have a
  /// block. Then gives the lease back.
  std::optional<std::vector<BlockSlot>> lease(std::uint32_t count,
                                              const std::vector<Numbers>& tables) {
    std::vector<std::vector<BlockId>> blocks;
    for (const Numbers& table : tables) blocks.push_back(blocks_of(table));
    const std::vector<std::span<const BlockId>> spans(blocks.begin(), blocks.end());
    std::optional<LeasedPrefix> leased = search_->lease(keys_, answer_, count, spans);
    if (!leased) {
      EXPECT_EQ(tier().snapshot().num_leased, 0U);
      return std::nullopt;
    }
    if (leased->empty()) return std::vector<BlockSlot>{};
    LeasedBlocks& part = leased->front();
    EXPECT_EQ(tier().snapshot().num_leased, part.lease.size());
    tier().release(std::move(part.lease));
    return std::move(part.to.blocks);
  }
  /// Blocks of a lease, as numbers; none if it was refused.
  Numbers leased_blocks(std::uint32_t count, const std::vector<Numbers>& tables) {
    Numbers numbers;
    const auto blocks = lease(count, tables);
    EXPECT_TRUE(blocks);
    if (!blocks) return {};
    for (const BlockSlot& pair : *blocks) numbers.push_back(pair.block.value());
    return numbers;
  }

  [[nodiscard]] cpu_tier::OneClass tier() { return {*tier_, SlabClassId(0)}; }

  std::unique_ptr<cpu_tier::Tier> tier_;
  std::vector<KvGroup> groups_;
  std::unique_ptr<BlockGroups> block_groups_;
  std::unique_ptr<PrefixSearch> search_;
  GroupKeys keys_;
  LookupAnswer answer_;
};

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
      if (search.find(keys, 0, 6).num_blocks == 6) return held;
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

TEST_F(PrefixSearchTest, AChunksMissingBlockLeavesWhatIsBeforeIt) {
  groups_ = {KvGroup{}, {TokenReach::chunk(4 * kBlockTokens)}};
  start_with_groups();
  hold(0, {0, 1, 2, 3, 4, 5, 6, 7});
  hold(1, {4, 6});
  EXPECT_EQ(find(0, 7), 5U);
  EXPECT_EQ(leased_blocks(5, {{20, 21, 22, 23, 24}, {0, 0, 0, 0, 34}}),
            (Numbers{20, 21, 22, 23, 24, 34}));
}

/// The same by trying every length.
TEST(PrefixSearch, FindsTheLongestPrefixThatEveryGroupServesWhateverIsHeld) {
  std::mt19937 random(5);
  const auto below = [&random](std::uint32_t bound) {
    return static_cast<std::uint32_t>(random() % bound);
  };
  std::uint32_t num_hits = 0;
  for (int round = 0; round < 2000; ++round) {
    std::vector<KvGroup> groups;
    const std::uint32_t num_groups = 1 + below(4);
    // Of each group, what the token behind `end` sees: from here on.
    std::vector<std::function<std::uint32_t(std::uint32_t end)>> first_seen;
    for (std::uint32_t i = 0; i < num_groups; ++i) {
      const std::uint32_t window = 1 + below(20);
      const std::uint32_t chunk = kBlockTokens * (1 + below(4));
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
    }
    const std::unique_ptr<cpu_tier::Tier> whole = tier_of(groups, 64);
    const cpu_tier::OneClass tier(*whole, SlabClassId(0));
    const BlockGroups block_groups(groups, kBlockTokens);
    const PrefixSearch search(*whole, block_groups);
    const GroupKeys keys = keys_of({0, 1, 2, 3, 4, 5, 6}, num_groups);
    std::set<std::pair<std::uint32_t, std::uint32_t>> held;
    for (std::uint32_t group = 0; group < num_groups; ++group) {
      for (std::uint32_t at = 0; at < 7; ++at) {
        if (below(4) == 0) continue;
        held.emplace(group, at);
        tier.commit(std::move(tier.reserve({&keys[group][at], 1})).value().hand_over());
      }
    }
    const std::uint32_t local = below(4);
    const std::uint32_t limit = below(8);
    // Local ones are there.
    const auto serves = [&](std::uint32_t end) {
      for (std::uint32_t group = 0; group < num_groups; ++group) {
        const std::uint32_t seen = first_seen[group](end * kBlockTokens);
        for (std::uint32_t token = std::max(seen, local * kBlockTokens); token < end * kBlockTokens;
             ++token) {
          if (!held.contains({group, token / kBlockTokens})) return false;
        }
      }
      return true;
    };
    std::uint32_t longest = std::max(local, limit);
    while (longest > local && !serves(longest)) --longest;
    const LookupAnswer answer = search.find(keys, local, limit);
    ASSERT_EQ(answer.num_blocks, longest - local) << "round " << round;
    if (answer.num_blocks > 0) ++num_hits;
  }
  EXPECT_GT(num_hits, 200U);
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
  const auto slot_of = [this](std::uint32_t group, std::uint32_t position) {
    return tier().lookup_prefix({&keys_[group][position], 1}).slots.at(0);
  };
  EXPECT_EQ((*blocks)[0], (BlockSlot{BlockId(21), slot_of(0, 1)}));
  EXPECT_EQ((*blocks)[2], (BlockSlot{BlockId(23), slot_of(0, 3)}));
  EXPECT_EQ((*blocks)[3], (BlockSlot{BlockId(32), slot_of(1, 2)}));
  EXPECT_EQ((*blocks)[4], (BlockSlot{BlockId(33), slot_of(1, 3)}));
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

TEST_F(PrefixSearchTest, WhatOfAnEarlierAnswerStillHoldsIsKept) {
  start({0, 8});
  hold(0, {0, 1, 2});
  hold(1, {1, 2, 3});
  ASSERT_EQ(find(), 3U);
  hold(0, {3});
  LookupAnswer longer = search_->find(keys_, 0, 10, std::move(answer_));
  EXPECT_EQ(longer.num_blocks, 4U);
  answer_ = std::move(longer);
  forget(0, 2);
  EXPECT_EQ(search_->find(keys_, 0, 10, std::move(answer_)).num_blocks, 0U)
      << "the window now needs blocks 0 and 1";
}

}  // namespace
}  // namespace kvferry::connector
