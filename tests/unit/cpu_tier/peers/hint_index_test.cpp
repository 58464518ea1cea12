// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/peers/hint_index.hpp"

#include "kvferry/base/mixed_bits.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace kvferry::cpu_tier {
namespace {

constexpr std::uint32_t kNumSlots = 4096;
constexpr auto kNever = [](std::uint32_t) { return false; };

class HintIndexTest : public ::testing::Test {
 protected:
  struct alignas(64) Line {
    std::atomic<std::uint64_t> hints[HintIndex::kBucketHints];
  };
  void make(std::uint64_t num_slots) {
    lines_ = std::vector<Line>(HintIndex::num_hints_for(num_slots) / HintIndex::kBucketHints);
  }
  [[nodiscard]] HintIndex index() {
    return HintIndex({lines_.front().hints, lines_.size() * HintIndex::kBucketHints});
  }
  [[nodiscard]] bool finds(std::uint64_t hash, std::uint32_t slot) {
    const HintIndex::Candidates found = index().find(hash);
    return std::find(found.begin(), found.end(), slot) != found.end();
  }
  static std::uint64_t hash(std::uint64_t key) { return mixed_bits(key + 1); }

  std::vector<Line> lines_;
};

TEST_F(HintIndexTest, FindsAllOfAFullTierButAFewOfTenThousand) {
  make(kNumSlots);
  for (std::uint32_t slot = 0; slot < kNumSlots; ++slot) index().insert(hash(slot), slot, kNever);
  std::uint32_t num_found = 0;
  for (std::uint32_t slot = 0; slot < kNumSlots; ++slot) num_found += finds(hash(slot), slot);
  // Buckets of 8 that get 2 in the mean: 2 of 10,000 get more than 8.
  EXPECT_GE(num_found, kNumSlots - 8);
}

TEST_F(HintIndexTest, FindsNoOtherKeysSlotButByChance) {
  make(kNumSlots);
  for (std::uint32_t slot = 0; slot < kNumSlots; ++slot) index().insert(hash(slot), slot, kNever);
  std::size_t num_candidates = 0;
  for (std::uint32_t key = kNumSlots; key < 2 * kNumSlots; ++key) {
    num_candidates += index().find(hash(key)).count;
  }
  EXPECT_EQ(num_candidates, 0U) << "32 bits of tag";
}

TEST_F(HintIndexTest, TheFirstAndTheLastSlotAreSlotsLikeOthers) {
  make(1);
  for (const std::uint32_t slot : {0U, HintIndex::kMaxSlots - 1}) {
    index().insert(hash(slot), slot, kNever);
    EXPECT_TRUE(finds(hash(slot), slot));
  }
}

TEST_F(HintIndexTest, AKeyInTwoSlotsHasTwoCandidates) {
  make(1);
  index().insert(hash(5), 1, kNever);
  index().insert(hash(5), 2, kNever);
  index().insert(hash(5), 2, kNever);
  EXPECT_EQ(index().find(hash(5)).count, 2U);
  index().remove(hash(5), 1);
  EXPECT_FALSE(finds(hash(5), 1));
  EXPECT_TRUE(finds(hash(5), 2));
  index().remove(hash(6), 2);
  EXPECT_TRUE(finds(hash(5), 2)) << "another key's";
}

TEST_F(HintIndexTest, AFullBucketGivesUpWhatIsStale) {
  make(1);
  for (std::uint32_t slot = 0; slot < HintIndex::kBucketHints; ++slot) {
    index().insert(hash(slot), slot, kNever);
  }
  index().insert(hash(100), 100, [](std::uint32_t slot) { return slot == 3; });
  for (std::uint32_t slot = 0; slot < HintIndex::kBucketHints; ++slot) {
    EXPECT_EQ(finds(hash(slot), slot), slot != 3);
  }
  EXPECT_TRUE(finds(hash(100), 100));
}

TEST_F(HintIndexTest, AFullBucketGivesUpOneIfNothingIsStale) {
  make(1);
  for (std::uint32_t slot = 0; slot < HintIndex::kBucketHints; ++slot) {
    index().insert(hash(slot), slot, kNever);
  }
  index().insert(hash(100), 100, kNever);
  EXPECT_TRUE(finds(hash(100), 100));
  std::size_t num_found = 0;
  for (std::uint32_t slot = 0; slot < HintIndex::kBucketHints; ++slot) {
    num_found += finds(hash(slot), slot);
  }
  EXPECT_EQ(num_found, HintIndex::kBucketHints - 1);
}

// Writers that meet in a bucket may lose hints, but what is found is what somebody has inserted.
TEST_F(HintIndexTest, WritersAtOnceLeaveOnlyWhatTheyInserted) {
  make(64);
  constexpr std::uint32_t kPerWriter = 20000;
  {
    std::vector<std::jthread> writers;
    for (std::uint32_t writer = 0; writer < 3; ++writer) {
      writers.emplace_back([this, writer] {
        for (std::uint32_t i = 0; i < kPerWriter; ++i) {
          const std::uint32_t slot = (i * 3 + writer) % 192;
          index().insert(hash(slot), slot, [](std::uint32_t other) { return other % 7 == 0; });
          if (i % 3 == 0) index().remove(hash(slot), slot);
        }
      });
    }
  }
  for (std::uint32_t key = 0; key < 192; ++key) {
    for (const std::uint32_t slot : index().find(hash(key))) EXPECT_EQ(slot, key);
  }
}

}  // namespace
}  // namespace kvferry::cpu_tier
