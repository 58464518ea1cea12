// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/slots/block_key.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

namespace kvferry::cpu_tier {
namespace {

std::vector<std::byte> bytes(std::size_t count, std::uint8_t value = 0) {
  return std::vector<std::byte>(count, std::byte{value});
}

TEST(BlockKey, TakesHashesOfOneTo32Bytes) {
  EXPECT_EQ(BlockKey::make(bytes(1), GroupId(0)).hash_bytes, 1U);
  EXPECT_EQ(BlockKey::make(bytes(32), GroupId(0)).hash_bytes, 32U);
  EXPECT_THROW(static_cast<void>(BlockKey::make({}, GroupId(0))), ConfigError);
  EXPECT_THROW(static_cast<void>(BlockKey::make(bytes(33), GroupId(0))), ConfigError);
}

TEST(BlockKey, HashesThatDifferOnlyInLengthDiffer) {
  const BlockKey shorter = BlockKey::make(bytes(16), GroupId(0));
  const BlockKey longer = BlockKey::make(bytes(32), GroupId(0));
  EXPECT_EQ(shorter.hash, longer.hash);
  EXPECT_FALSE(shorter == longer);
  EXPECT_NE(shorter.mixed(), longer.mixed());
}

TEST(BlockKey, OneHashInTwoGroupsIsTwoKeys) {
  const BlockKey first = BlockKey::make(bytes(32, 7), GroupId(0));
  const BlockKey second = BlockKey::make(bytes(32, 7), GroupId(1));
  EXPECT_FALSE(first == second);
  EXPECT_NE(first.mixed(), second.mixed());
}

TEST(BlockKey, AFoldedHashStandsForItsHashUnderEveryGroupAndWeights) {
  for (const std::size_t size : {1U, 7U, 8U, 16U, 31U, 32U}) {
    std::vector<std::byte> hash = bytes(size);
    for (std::size_t i = 0; i < size; ++i) hash[i] = static_cast<std::byte>(37 * i + size);
    const std::uint64_t folded = BlockKey::make(hash, GroupId(0)).folded_hash();
    std::vector<std::byte> stand_in = bytes(size);
    std::memcpy(stand_in.data(), &folded, std::min(size, sizeof folded));
    for (const GroupId group : {GroupId(0), GroupId(3)}) {
      for (const WeightsId of : {WeightsId(), WeightsId(0x0123456789abcdef)}) {
        const std::uint64_t mixed = BlockKey::make(hash, group, of).mixed();
        EXPECT_EQ(BlockKey::make(stand_in, group, of).mixed(), mixed) << size;
        EXPECT_EQ(BlockKey::mixed_of(folded, static_cast<std::uint16_t>(size), group, of), mixed);
      }
    }
  }
}

TEST(BlockKey, EveryByteCounts) {
  const BlockKey base = BlockKey::make(bytes(32), GroupId(0));
  for (std::size_t i = 0; i < 32; ++i) {
    auto hash = bytes(32);
    hash[i] = std::byte{1};
    const BlockKey changed = BlockKey::make(hash, GroupId(0));
    EXPECT_FALSE(changed == base) << "byte " << i;
    EXPECT_NE(changed.mixed(), base.mixed()) << "byte " << i;
  }
}

TEST(BlockKey, OneHashUnderOtherWeightsIsAnotherKey) {
  constexpr WeightsId kOld{0x0123456789abcdef};
  // The 32 bits that tell the weights are the same.
  constexpr WeightsId kAlike{0x0123456789abcdef ^ 0x1111111111111111};
  for (const std::size_t size : {1, 16, 32}) {
    const BlockKey none = BlockKey::make(bytes(size, 7), GroupId(2));
    const BlockKey old = BlockKey::make(bytes(size, 7), GroupId(2), kOld);
    const BlockKey alike = BlockKey::make(bytes(size, 7), GroupId(2), kAlike);
    EXPECT_FALSE(none == old);
    EXPECT_FALSE(old == alike);
    EXPECT_NE(none.mixed(), old.mixed());
    EXPECT_NE(old.mixed(), alike.mixed());
    EXPECT_EQ(old.weights, alike.weights);
    EXPECT_TRUE(none.is_of(WeightsId()) && old.is_of(kOld));
    EXPECT_FALSE(none.is_of(kOld) || old.is_of(WeightsId()));
    EXPECT_TRUE(none.mixed_with(kOld) == old);
    EXPECT_TRUE(old.mixed_with(kOld) == none);
    EXPECT_TRUE(BlockKey::make(bytes(size, 7), GroupId(2), WeightsId()) == none);
  }
}

TEST(BlockKey, SetLeavesNothingOfTheKeyBefore) {
  BlockKey key = BlockKey::make(bytes(32, 7), GroupId(2), WeightsId(3));
  for (const std::size_t size : {1, 16, 32}) {
    key.set(bytes(size, 9), GroupId(1), WeightsId(5));
    EXPECT_TRUE(key == BlockKey::make(bytes(size, 9), GroupId(1), WeightsId(5)));
    key.set(bytes(size, 9), GroupId(1), WeightsId());
    EXPECT_TRUE(key == BlockKey::make(bytes(size, 9), GroupId(1)));
  }
}

TEST(BlockKey, TakesAsManyGroupsAsItHasBitsFor) {
  EXPECT_EQ(BlockKey::make(bytes(1), GroupId(65535)).group, 65535U);
  EXPECT_THROW(static_cast<void>(BlockKey::make(bytes(1), GroupId(65536))), ConfigError);
}

}  // namespace
}  // namespace kvferry::cpu_tier
