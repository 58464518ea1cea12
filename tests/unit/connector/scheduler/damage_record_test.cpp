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
  record.note_damaged_load(kFirst, 2, 2);
  record.note_good_load(kSecond);
  record.note_damaged_load(kFirst, 3, 3);
  EXPECT_EQ(std::vector<std::uint64_t>(record.num_damaged().begin(), record.num_damaged().end()),
            (std::vector<std::uint64_t>{5, 0}));
}

TEST(DamageRecord, TrustsARankUntilThreeOfItsLoadsInARowWereDamaged) {
  DamageRecord record(2);
  record.note_damaged_load(kSecond, 1, 1);
  record.note_damaged_load(kSecond, 100, 100);
  record.note_damaged_load(kFirst, 1, 1);
  EXPECT_EQ(record.distrusted(), std::nullopt) << "not in a row of one rank";
  record.note_good_load(kSecond);
  record.note_damaged_load(kSecond, 1, 1);
  record.note_damaged_load(kSecond, 1, 1);
  EXPECT_EQ(record.distrusted(), std::nullopt);
  record.note_damaged_load(kSecond, 1, 1);
  EXPECT_EQ(record.distrusted(), kSecond);
  record.note_good_load(kSecond);
  for (int i = 0; i < 3; ++i) record.note_damaged_load(kFirst, 1, 1);
  EXPECT_EQ(record.distrusted(), kSecond) << "it stays so";
}

TEST(DamageRecord, ABlockThatIsKnownToBeDamagedIsNoNewAccident) {
  DamageRecord record(1);
  record.note_damaged_load(kFirst, 1, 1);
  for (int i = 0; i < 5; ++i) record.note_damaged_load(kFirst, 1, 0);
  EXPECT_EQ(record.distrusted(), std::nullopt);
  EXPECT_EQ(record.num_damaged()[0], 6U);
}

}  // namespace
}  // namespace kvferry::connector
