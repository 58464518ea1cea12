// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/slots/block_index.hpp"

#include "kvferry/base/error.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <random>
#include <utility>
#include <vector>

namespace kvferry::cpu_tier {
namespace {

/// The inverse of BlockKey::mixed() on its first word.
std::uint64_t unmixed(std::uint64_t x) {
  x = x ^ (x >> 31) ^ (x >> 62);
  x *= 0x319642b2d24d8ec3ULL;  // Inverse of 0x94d049bb133111eb modulo 2^64.
  x = x ^ (x >> 27) ^ (x >> 54);
  x *= 0x96de1b173f119089ULL;  // Inverse of 0xbf58476d1ce4e5b9.
  return x ^ (x >> 30) ^ (x >> 60);
}

/// A key whose mixed() is `mixed`; a different key for each `variant`.
BlockKey key_mixing_to(std::uint64_t mixed, std::uint64_t variant) {
  const std::uint64_t words[4] = {unmixed(mixed) ^ variant ^ BlockKey::kMaxHashBytes, 0, variant,
                                  0};
  std::array<std::byte, BlockKey::kMaxHashBytes> hash;
  std::memcpy(hash.data(), words, sizeof words);
  return BlockKey::make(hash, GroupId(0));
}

/// A key at home in place `home` of a table of 16, of a tag of its own.
BlockKey key_at_home(std::uint64_t home, std::uint64_t variant) {
  return key_mixing_to(home << 60 | variant << 32, variant);
}

std::vector<SlotId> slots_from(std::uint32_t first, std::size_t count) {
  std::vector<SlotId> result;
  for (std::uint32_t i = 0; i < count; ++i) result.emplace_back(first + i);
  return result;
}

std::uint32_t find_one(const BlockIndex& index, const BlockKey& key) {
  SlotId slot;
  index.find(std::span(&key, 1), std::span(&slot, 1));
  return slot.value();
}
void insert_one(BlockIndex& index, const BlockKey& key, std::uint32_t slot) {
  const SlotId id(slot);
  index.insert(std::span(&key, 1), std::span(&id, 1));
}
void erase_one(BlockIndex& index, std::uint32_t slot) {
  const SlotId id(slot);
  index.erase(std::span(&id, 1));
}

constexpr std::uint32_t kAbsent = BlockIndex::kNoSlot.value();

TEST(BlockIndex, TestKeysMixToWhatIsAskedFor) {
  EXPECT_EQ(key_mixing_to(0x0123456789abcdefULL, 5).mixed(), 0x0123456789abcdefULL);
  EXPECT_FALSE(key_mixing_to(42, 1) == key_mixing_to(42, 2));
}

TEST(BlockIndex, IsAtMostHalfFull) {
  EXPECT_EQ(BlockIndex(0).capacity(), 16U);
  EXPECT_EQ(BlockIndex(8).capacity(), 16U);
  EXPECT_EQ(BlockIndex(9).capacity(), 32U);
  EXPECT_EQ(BlockIndex(500000).capacity(), std::size_t{1} << 20);
}

TEST(BlockIndex, RefusesMoreSlotsThanItCanName) {
  EXPECT_THROW(BlockIndex(BlockIndex::kMaxSlots + 1), ConfigError);
}

TEST(BlockIndex, TellsKeysOfOneMixedValueApart) {
  constexpr std::uint32_t kNum = 100;
  BlockIndex index(kNum);
  std::vector<BlockKey> keys;
  for (std::uint32_t i = 0; i < kNum; ++i) keys.push_back(key_mixing_to(0xfeed'beef'0000'0001, i));
  const std::vector<SlotId> slots = slots_from(0, kNum);
  index.insert(keys, slots);

  std::vector<SlotId> found(kNum);
  index.find(keys, found);
  EXPECT_EQ(found, slots);
  EXPECT_EQ(find_one(index, key_mixing_to(0xfeed'beef'0000'0001, kNum)), kAbsent);

  for (std::uint32_t i = 0; i < kNum; i += 2) erase_one(index, i);
  index.check_invariants();
  for (std::uint32_t i = 0; i < kNum; ++i) {
    EXPECT_EQ(find_one(index, keys[i]), i % 2 == 0 ? kAbsent : i);
  }
}

TEST(BlockIndex, TakesTheMixedValuesOfItsKeysFromTheCaller) {
  constexpr std::uint32_t kNum = 100;
  BlockIndex index(kNum);
  std::vector<BlockKey> keys;
  std::vector<std::uint64_t> hashes;
  for (std::uint32_t i = 0; i < 2 * kNum; ++i) {
    // Two keys each have one value, and half of the keys are absent.
    keys.push_back(key_mixing_to((std::uint64_t{i} / 2) << 40, i));
    hashes.push_back(keys.back().mixed());
  }
  const std::vector<SlotId> slots = slots_from(0, kNum);
  index.insert(std::span(keys).first(kNum), std::span(hashes).first(kNum), slots);
  index.check_invariants();

  std::vector<SlotId> found(keys.size());
  std::vector<SlotId> found_by_keys(keys.size());
  index.find(keys, hashes, found);
  index.find(keys, found_by_keys);
  EXPECT_EQ(found, found_by_keys);
  for (std::uint32_t i = 0; i < keys.size(); ++i) {
    EXPECT_EQ(found[i].value(), i < kNum ? i : kAbsent);
  }
}

TEST(BlockIndex, ProbesAndShiftsAcrossTheEndOfTheTable) {
  BlockIndex index(8);
  for (std::uint32_t i = 0; i < 4; ++i) insert_one(index, key_at_home(15, i), i);  // 15, 0, 1, 2
  insert_one(index, key_at_home(0, 4), 4);                                         // 3
  insert_one(index, key_at_home(2, 5), 5);                                         // 4
  erase_one(index, 0);
  index.check_invariants();
  EXPECT_EQ(find_one(index, key_at_home(15, 0)), kAbsent);
  for (std::uint32_t i = 1; i < 4; ++i) EXPECT_EQ(find_one(index, key_at_home(15, i)), i);
  EXPECT_EQ(find_one(index, key_at_home(0, 4)), 4U);
  EXPECT_EQ(find_one(index, key_at_home(2, 5)), 5U);
}

TEST(BlockIndex, EraseLeavesAnEntryThatIsAtHomeInPlace) {
  BlockIndex index(8);
  insert_one(index, key_at_home(3, 0), 0);
  insert_one(index, key_at_home(4, 1), 1);
  insert_one(index, key_at_home(3, 2), 2);  // Place 5, behind the one at home in 4.
  erase_one(index, 0);
  index.check_invariants();
  EXPECT_EQ(find_one(index, key_at_home(4, 1)), 1U);
  EXPECT_EQ(find_one(index, key_at_home(3, 2)), 2U);
}

/// The longest run there can be: as many keys as the index takes, each at home in the last places
/// of the table, so that nearly all of them lie behind its end.
TEST(BlockIndex, AFullIndexWhoseKeysAllBeginAtTheEndOfTheTableStaysExact) {
  constexpr std::uint32_t kNum = 1024;  // In a table of 2,048: a home is the tag's first 11 bits.
  BlockIndex index(kNum);
  ASSERT_EQ(index.capacity(), 2U * kNum);
  std::vector<BlockKey> keys;
  for (std::uint64_t i = 0; i < kNum; ++i) {
    const std::uint64_t home = 2 * kNum - 1 - i % 3;
    // Every fourth one has the tag of others, too.
    keys.push_back(key_mixing_to(home << 53 | (i % 4 == 0 ? 0 : i) << 32, i));
  }
  const std::vector<SlotId> slots = slots_from(0, kNum);
  index.insert(keys, slots);
  EXPECT_EQ(index.size(), kNum);
  index.check_invariants();
  std::vector<SlotId> found(kNum);
  index.find(keys, found);
  EXPECT_EQ(found, slots);

  std::mt19937 random(3);
  std::vector<SlotId> shuffled = slots;
  std::shuffle(shuffled.begin(), shuffled.end(), random);
  const std::span<const SlotId> erased = std::span(shuffled).first(kNum / 2);
  index.erase(erased);
  index.check_invariants();
  std::vector<SlotId> expected = slots;
  for (const SlotId slot : erased) expected[slot.value()] = BlockIndex::kNoSlot;
  index.find(keys, found);
  EXPECT_EQ(found, expected);

  // To the last slot again, each key in another one.
  std::vector<BlockKey> again;
  for (const SlotId slot : erased) again.push_back(keys[slot.value()]);
  std::vector<SlotId> others(erased.rbegin(), erased.rend());
  index.insert(again, others);
  index.check_invariants();
  index.find(again, std::span(found).first(again.size()));
  EXPECT_TRUE(std::equal(others.begin(), others.end(), found.begin()));
}

TEST(BlockIndex, BatchesOfAnyLengthAgree) {
  constexpr std::uint32_t kNum = 200;
  std::mt19937_64 random(7);
  for (const std::size_t count : {0U, 1U, 15U, 16U, 17U, 31U, 32U, 33U, 64U, 65U, 200U}) {
    BlockIndex index(kNum);
    std::vector<BlockKey> keys;
    for (std::size_t i = 0; i < count; ++i) keys.push_back(key_mixing_to(random(), i));
    const std::vector<SlotId> slots = slots_from(0, count);
    index.insert(keys, slots);
    index.check_invariants();
    EXPECT_EQ(index.size(), count);
    std::vector<SlotId> found(count);
    index.find(keys, found);
    EXPECT_EQ(found, slots);
    index.erase(slots);
    EXPECT_EQ(index.size(), 0U);
    index.find(keys, found);
    EXPECT_EQ(found, std::vector<SlotId>(count, BlockIndex::kNoSlot));
  }
}

/// Random inserts and erases in a small table where most keys collide, against std::map.
TEST(BlockIndex, AgreesWithAMapUnderCollisions) {
  constexpr std::uint32_t kNumSlots = 8;
  for (std::uint32_t seed = 0; seed < 20; ++seed) {
    std::mt19937 random(seed);
    BlockIndex index(kNumSlots);
    std::map<std::uint32_t, std::pair<std::uint64_t, std::uint64_t>>
        mapped;  // slot -> home, variant
    for (int step = 0; step < 2000; ++step) {
      const std::uint32_t slot = random() % kNumSlots;
      if (mapped.contains(slot)) {
        erase_one(index, slot);
        mapped.erase(slot);
      } else {
        // A step of its own in the variant: never two equal keys.
        const std::pair home_and_variant{std::uint64_t{random() % 16},
                                         static_cast<std::uint64_t>(step)};
        insert_one(index, key_at_home(home_and_variant.first, home_and_variant.second), slot);
        mapped[slot] = home_and_variant;
      }
      index.check_invariants();
      ASSERT_EQ(index.size(), mapped.size());
      for (const auto& [held, which] : mapped) {
        ASSERT_EQ(find_one(index, key_at_home(which.first, which.second)), held)
            << "seed " << seed << " step " << step;
      }
    }
  }
}

TEST(BlockIndexDeathTest, InsertingAPresentKeyStops) {
  BlockIndex index(4);
  insert_one(index, key_at_home(1, 1), 2);
  EXPECT_DEATH(insert_one(index, key_at_home(1, 1), 3), "slot 2 holds");
}

TEST(BlockIndexDeathTest, ErasingAnUnmappedSlotStops) {
  BlockIndex index(4);
  EXPECT_DEATH(erase_one(index, 1), "slot 1 is not in the index");
}

TEST(BlockIndexDeathTest, SpansOfDifferentLengthsStop) {
  BlockIndex index(4);
  const std::vector<BlockKey> keys(2);
  std::vector<SlotId> slots(1);
  EXPECT_DEATH(index.find(keys, slots), "different lengths");
  EXPECT_DEATH(index.insert(keys, slots), "different lengths");
  const std::vector<std::uint64_t> hashes(1);
  slots.resize(2);
  EXPECT_DEATH(index.find(keys, hashes, slots), "different lengths");
  EXPECT_DEATH(index.insert(keys, hashes, slots), "different lengths");
}

}  // namespace
}  // namespace kvferry::cpu_tier
