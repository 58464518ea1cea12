// SPDX-License-Identifier: Apache-2.0
#include "tier_fixture.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace kvferry::cpu_tier {
namespace {

TierOptions with_events() {
  return {.eviction = Eviction::kLru, .admission = Admission::kAlways, .key_events = true};
}

/// What was noted since the last look: the numbers of keys that became readable, and the negated
/// ones of those that ceased to be.
class KeyEvents : public TierFixture {
 protected:
  KeyEvents() : TierFixture(4, with_events()) {}

  std::vector<int> events() {
    std::vector<int> result;
    for (const KeyEvent& event : tier.take_key_events()) {
      int number = 0;
      std::memcpy(&number, event.key.hash.data(), sizeof number);
      result.push_back(event.readable ? number : -number);
    }
    return result;
  }
};

TEST_F(KeyEvents, AreTakenOnce) {
  store(keys(1, 2));
  EXPECT_EQ(events(), (std::vector{1, 2}));
  EXPECT_EQ(events(), std::vector<int>());
}

TEST_F(KeyEvents, NothingIsToldOfWhatWasNeverReadable) {
  WritableSlots slots = take(keys(1, 2));
  tier.release(tier.abort(std::move(slots)));
  static_cast<void>(tier.reserve(keys(3, 1)));
  EXPECT_EQ(events(), std::vector<int>());
}

TEST_F(KeyEvents, EvictedKeysAreGoneBeforeTheirSlotsAreUsedAgain) {
  store(keys(1, 4));
  static_cast<void>(events());
  store(keys(7, 2));
  EXPECT_EQ(events(), (std::vector{-4, -3, 7, 8}));
}

TEST_F(KeyEvents, ForgottenKeysAreGoneThoughTheyAreLeased) {
  store(keys(1, 3));
  Lease held = lease(keys(1, 3));
  static_cast<void>(events());
  tier.forget(held);
  EXPECT_EQ(events(), (std::vector{-3, -2, -1}));
  tier.release(std::move(held));
  EXPECT_EQ(events(), std::vector<int>());
}

TEST_F(KeyEvents, ATierThatIsEmptiedTellsOfEachKey) {
  store(keys(1, 3));
  static_cast<void>(events());
  tier.forget_all();
  EXPECT_EQ(events().size(), 3U);
}

TEST(KeyEventsOff, NothingIsNoted) {
  PlainTier tier(4);
  tier.grow_to(4);
  tier.commit(std::move(tier.reserve(keys(1, 2))).value().hand_over());
  EXPECT_TRUE(tier.take_key_events().empty());
}

}  // namespace
}  // namespace kvferry::cpu_tier
