// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/cpu_tier/slots/tier.hpp"

#include "one_class.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

namespace kvferry::cpu_tier {

/// A 32-byte key in group 0, different for each `number`.
inline BlockKey key(std::uint64_t number) {
  std::array<std::byte, 32> hash{};
  std::memcpy(hash.data(), &number, sizeof number);
  return BlockKey::make(hash, GroupId(0));
}
inline std::uint64_t hash(std::uint64_t number) { return key(number).mixed(); }

/// The keys first, first + 1, ... first + count - 1.
inline std::vector<BlockKey> keys(std::uint64_t first, std::size_t count) {
  std::vector<BlockKey> result;
  for (std::size_t i = 0; i < count; ++i) result.push_back(key(first + i));
  return result;
}

inline std::vector<std::uint32_t> ids(std::span<const SlotId> slots) {
  std::vector<std::uint32_t> result;
  for (const SlotId slot : slots) result.push_back(slot.value());
  return result;
}

/// A tier whose invariants are walked after every test.
class TierFixture : public ::testing::Test {
 protected:
  explicit TierFixture(std::uint32_t num_slots, const TierOptions& options = {})
      : tier(num_slots, options) {
    tier.grow_to(num_slots);
  }
  void TearDown() override { tier.check_invariants(); }

  /// Reserves `wanted`, which fit.
  WritableSlots take(std::span<const BlockKey> wanted) {
    return std::move(tier.reserve(wanted)).value().hand_over();
  }
  /// Makes `wanted` readable.
  void store(std::span<const BlockKey> wanted) { tier.commit(take(wanted)); }
  Lease lease(std::span<const BlockKey> wanted) { return std::move(tier.lease(wanted)).value(); }
  /// Makes `wanted`, which are readable, absent, as a load of them that failed does.
  void forget(std::span<const BlockKey> wanted) {
    Lease doubted = lease(wanted);
    tier.forget(doubted);
    tier.release(std::move(doubted));
  }

  KeyState state(const BlockKey& wanted) const {
    KeyState result{};
    tier.lookup(std::span(&wanted, 1), std::span(&result, 1));
    return result;
  }
  /// Which of the numbers [first, first + count) are readable.
  std::vector<std::uint64_t> readable(std::uint64_t first, std::size_t count) const {
    std::vector<std::uint64_t> result;
    for (std::uint64_t number = first; number < first + count; ++number) {
      if (state(key(number)) == KeyState::kReadable) result.push_back(number);
    }
    return result;
  }

  PlainTier tier;
};

}  // namespace kvferry::cpu_tier
