// SPDX-License-Identifier: Apache-2.0
#include "damage_record.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace kvferry::connector {
namespace {

constexpr RankId kFirst{0};
constexpr RankId kSecond{1};

TEST(DamageRecord, CountsBlocksByRank) {
  DamageRecord record(2);
  record.note_load(kFirst, 2);
  record.note_load(kSecond, 0);
  record.note_load(kFirst, 3);
  EXPECT_EQ(std::vector<std::uint64_t>(record.num_damaged().begin(), record.num_damaged().end()),
            (std::vector<std::uint64_t>{5, 0}));
}

TEST(DamageRecord, TrustsARankUntilThreeOfItsLoadsInARowWereDamaged) {
  DamageRecord record(2);
  record.note_load(kSecond, 1);
  record.note_load(kSecond, 100);
  record.note_load(kFirst, 1);
  EXPECT_EQ(record.distrusted(), std::nullopt) << "not in a row of one rank";
  record.note_load(kSecond, 0);
  record.note_load(kSecond, 1);
  record.note_load(kSecond, 1);
  EXPECT_EQ(record.distrusted(), std::nullopt);
  record.note_load(kSecond, 1);
  EXPECT_EQ(record.distrusted(), kSecond);
  record.note_load(kSecond, 0);
  for (int i = 0; i < 3; ++i) record.note_load(kFirst, 1);
  EXPECT_EQ(record.distrusted(), kSecond) << "it stays so";
}

}  // namespace
}  // namespace kvferry::connector
