// SPDX-License-Identifier: Apache-2.0
// What a tier's metadata takes of the heap, as the heap counts it.
#include "kvferry/base/mixed_bits.hpp"
#include "kvferry/cpu_tier/slots/tier.hpp"

#include "allocation_fault.hpp"
#include "one_class.hpp"

#include <gtest/gtest.h>

#include <array>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace kvferry::cpu_tier {
namespace {

constexpr double kMostBytesBesideTheKey = 80;

std::vector<BlockKey> keys_from(std::uint64_t first, std::size_t count) {
  std::vector<BlockKey> keys;
  keys.reserve(count);
  for (std::uint64_t i = first; i < first + count; ++i) {
    const std::array<std::uint64_t, 2> hash{mixed_bits(2 * i), mixed_bits(2 * i + 1)};
    keys.push_back(BlockKey::make(std::as_bytes(std::span(hash)), GroupId(0)));
  }
  return keys;
}

/// Slots: ten million, and as many as make the index as large as can be for its slots.
class TierMemory : public testing::TestWithParam<std::uint32_t> {};

TEST_P(TierMemory, ASlotOfTheDefaultTierTakesAtMost80BytesBesideItsKey) {
  const std::int64_t before = fault::num_live_bytes();
  PlainTier tier(GetParam());
  tier.grow_to(GetParam());
  const double bytes_per_slot =
      static_cast<double>(fault::num_live_bytes() - before) / GetParam() - sizeof(BlockKey);
  RecordProperty("bytes_per_slot_beside_the_key", std::to_string(bytes_per_slot));
  EXPECT_LE(bytes_per_slot, kMostBytesBesideTheKey);
  // Records of 16 bytes and two entries of 8: less was not counted.
  EXPECT_GE(bytes_per_slot, 32 * 0.8);
}

INSTANTIATE_TEST_SUITE_P(Slots, TierMemory, testing::Values(10'000'000U, (1U << 23) + 1),
                         [](const auto& test) { return std::to_string(test.param); });

TEST(TierMemoryInUse, IsThatOfTheEmptyTierHoweverMuchIsStoredAndEvicted) {
  constexpr std::uint32_t kManySlots = 20000;
  constexpr std::size_t kBatch = 500;
  PlainTier tier(kManySlots);
  tier.grow_to(kManySlots);
  const std::int64_t empty = fault::num_live_bytes();
  for (std::uint64_t first = 0; first < 3 * kManySlots; first += kBatch) {
    const std::vector<BlockKey> keys = keys_from(first, kBatch);
    std::vector<OfferAnswer> answers(kBatch);
    tier.offer(keys, answers);
    tier.commit(std::move(tier.reserve(keys)).value().hand_over());
  }
  ASSERT_EQ(tier.snapshot().num_evictable, kManySlots);
  ASSERT_EQ(tier.snapshot().num_evicted_total, 2U * kManySlots);
  EXPECT_EQ(fault::num_live_bytes(), empty);
}

}  // namespace
}  // namespace kvferry::cpu_tier
