// SPDX-License-Identifier: Apache-2.0
#include "backlog.hpp"

#include "fake_engine.hpp"

#include <gtest/gtest.h>

#include <deque>
#include <random>
#include <vector>

namespace kvferry::connector {
namespace {

std::vector<std::uint32_t> drain(Backlog& backlog) {
  std::vector<std::uint32_t> blocks;
  while (const auto entry = backlog.pop()) blocks.push_back(entry->block.value());
  return blocks;
}

TEST(Backlog, GivesEntriesInTheOrderTheyCame) {
  Backlog backlog(8);
  for (const std::uint32_t block : {5U, 2U, 7U}) backlog.push(BlockId(block), key_of(block));
  EXPECT_EQ(backlog.size(), 3U);
  EXPECT_EQ(drain(backlog), (std::vector<std::uint32_t>{5, 2, 7}));
  EXPECT_EQ(backlog.size(), 0U);
}

TEST(Backlog, ReplacesTheEntryOfAReallocatedBlockInPlace) {
  Backlog backlog(8);
  backlog.push(BlockId(1), key_of(10));
  backlog.push(BlockId(2), key_of(20));
  backlog.push(BlockId(1), key_of(11));
  EXPECT_EQ(backlog.size(), 2U);
  const auto first = backlog.pop();
  ASSERT_TRUE(first);
  EXPECT_EQ(first->block, BlockId(1));
  EXPECT_EQ(first->key, key_of(11));
  EXPECT_EQ(drain(backlog), (std::vector<std::uint32_t>{2}));
}

TEST(Backlog, PutsBackAtTheHeadButNotOverANewerEntry) {
  Backlog backlog(8);
  backlog.push(BlockId(1), key_of(10));
  backlog.push(BlockId(2), key_of(20));
  const auto taken = backlog.pop();
  ASSERT_TRUE(taken);
  backlog.push(BlockId(1), key_of(11));  // Offered anew, under another key, before it came back.
  backlog.push_front(*taken);
  EXPECT_EQ(backlog.size(), 2U);
  EXPECT_EQ(backlog.pop()->block, BlockId(2));
  EXPECT_EQ(backlog.pop()->key, key_of(11));
  backlog.push(BlockId(3), key_of(30));
  backlog.push_front(*taken);
  EXPECT_EQ(drain(backlog), (std::vector<std::uint32_t>{1, 3}));
}

TEST(Backlog, DroppedEntriesAreNeitherCountedNorGiven) {
  Backlog backlog(8);
  backlog.push(BlockId(1), key_of(10));
  backlog.push(BlockId(2), key_of(20));
  backlog.drop(BlockId(1));
  backlog.drop(BlockId(1));
  backlog.drop(BlockId(5));
  EXPECT_EQ(backlog.size(), 1U);
  EXPECT_EQ(drain(backlog), (std::vector<std::uint32_t>{2}));
}

TEST(Backlog, ABlockOfferedAfterItWasDroppedIsGivenOnceUnderItsNewKey) {
  Backlog backlog(8);
  backlog.push(BlockId(1), key_of(10));
  backlog.drop(BlockId(1));
  backlog.push(BlockId(1), key_of(11));
  EXPECT_EQ(backlog.size(), 1U);
  EXPECT_EQ(backlog.pop()->key, key_of(11));
  EXPECT_FALSE(backlog.pop());
}

TEST(Backlog, IsEmptyAndUsableAfterClear) {
  Backlog backlog(8);
  backlog.push(BlockId(1), key_of(10));
  backlog.push(BlockId(2), key_of(20));
  backlog.drop(BlockId(2));
  backlog.clear();
  EXPECT_EQ(backlog.size(), 0U);
  EXPECT_FALSE(backlog.pop());
  backlog.push(BlockId(2), key_of(21));
  EXPECT_EQ(drain(backlog), (std::vector<std::uint32_t>{2}));
}

TEST(Backlog, NeverHoldsABlockTwiceWhateverIsDone) {
  constexpr std::uint32_t kBlocks = 12;
  std::mt19937 random(1);
  Backlog backlog(kBlocks);
  std::vector<std::optional<std::uint64_t>> model(kBlocks);
  for (std::uint64_t step = 0; step < 20'000; ++step) {
    const std::uint32_t block = random() % kBlocks;
    switch (random() % 4) {
      case 0:
        backlog.push(BlockId(block), key_of(step));
        model[block] = step;
        break;
      case 1:
        backlog.push_front({BlockId(block), key_of(step)});
        if (!model[block]) model[block] = step;
        break;
      case 2:
        backlog.drop(BlockId(block));
        model[block].reset();
        break;
      default:
        if (const auto entry = backlog.pop()) {
          auto& known = model[entry->block.value()];
          ASSERT_TRUE(known);
          ASSERT_EQ(entry->key, key_of(*known));
          known.reset();
        }
    }
    std::size_t expected = 0;
    for (const auto& known : model) expected += known.has_value() ? 1 : 0;
    ASSERT_EQ(backlog.size(), expected);
  }
}

}  // namespace
}  // namespace kvferry::connector
