// SPDX-License-Identifier: Apache-2.0
#include "chunk_fairness.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace kvferry::cpu_tier {
namespace {

constexpr std::uint32_t kChunks = 160;
constexpr ChunkDemand kNone{};

TEST(ChunkFairness, NobodyGivesWhileNobodyWants) {
  const std::vector<ChunkDemand> all{{1, 150, 0, 200}, {1, 10, 0, 0}};
  EXPECT_EQ(num_chunks_to_give(all, 0, kChunks), 0U);
  EXPECT_EQ(num_chunks_to_give(all, 1, kChunks), 0U);
}

TEST(ChunkFairness, WhoHasLessThanHisPartGetsItFromWhoHasMore) {
  const std::vector<ChunkDemand> all{{1, 150, 5, 0}, kNone, {1, 10, 3, 0}};
  EXPECT_EQ(num_chunks_to_give(all, 0, kChunks), 3U);
  EXPECT_EQ(num_chunks_to_give(all, 2, kChunks), 0U) << "although the other wants, too";
}

TEST(ChunkFairness, OfWhatOneHasASixteenthGoesAtATime) {
  const std::vector<ChunkDemand> all{{1, 160, 0, 0}, {1, 0, 100, 0}};
  EXPECT_EQ(num_chunks_to_give(all, 0, kChunks), 10U);
  const std::vector<ChunkDemand> few{{1, 3, 0, 100}, {1, 157, 100, 0}};
  EXPECT_EQ(num_chunks_to_give(few, 0, kChunks), 1U);
}

TEST(ChunkFairness, NobodyGivesMoreThanWhatIsAboveHisPart) {
  const std::vector<ChunkDemand> all{{1, 82, 9, 0}, {1, 78, 9, 0}};
  EXPECT_EQ(num_chunks_to_give(all, 0, kChunks), 2U);
  const std::vector<ChunkDemand> even{{1, 80, 9, 0}, {1, 80, 9, 0}};
  EXPECT_EQ(num_chunks_to_give(even, 0, kChunks), 0U);
}

TEST(ChunkFairness, PartsAreByWeight) {
  const std::vector<ChunkDemand> all{{3, 120, 9, 0}, {1, 40, 9, 0}};
  EXPECT_EQ(num_chunks_to_give(all, 0, kChunks), 0U);
  EXPECT_EQ(num_chunks_to_give(all, 1, kChunks), 0U);
  const std::vector<ChunkDemand> wrong{{3, 80, 9, 0}, {1, 80, 9, 0}};
  EXPECT_EQ(num_chunks_to_give(wrong, 0, kChunks), 0U);
  EXPECT_EQ(num_chunks_to_give(wrong, 1, kChunks), 5U);
}

TEST(ChunkFairness, WhatLiesUnusedGoesToWhoseBlocksLiveShorter) {
  const std::vector<ChunkDemand> all{{1, 40, 0, 100}, {1, 120, 2, 20}};
  EXPECT_EQ(num_chunks_to_give(all, 0, kChunks), 2U) << "although it has less than its part";
  const std::vector<ChunkDemand> alike{{1, 40, 0, 40}, {1, 120, 2, 20}};
  EXPECT_EQ(num_chunks_to_give(alike, 0, kChunks), 0U);
}

TEST(ChunkFairness, WithoutWeightsAgeAloneDecides) {
  const std::vector<ChunkDemand> all{{0, 150, 0, 0}, {0, 10, 3, 0}};
  EXPECT_EQ(num_chunks_to_give(all, 0, kChunks), 0U);
  const std::vector<ChunkDemand> older{{0, 150, 0, 9}, {0, 10, 3, 0}};
  EXPECT_EQ(num_chunks_to_give(older, 0, kChunks), 3U);
}

}  // namespace
}  // namespace kvferry::cpu_tier
