// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/slots/tier_moves.hpp"

#include "tier_fixture.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace kvferry::cpu_tier {
namespace {

TierOptions with_moves() {
  return {.eviction = Eviction::kLru, .admission = Admission::kAlways, .key_moves = true};
}

class KeyMoves : public TierFixture {
 protected:
  KeyMoves() : TierFixture(4, with_moves()) {}

  std::vector<KeyMove> moves() {
    std::vector<KeyMove> taken;
    TierMoves(tier.all()).take(SlabClassId(0), taken);
    return taken;
  }
  /// The moves are of these keys, in this order.
  static void expect_moves(const std::vector<KeyMove>& moves, const std::vector<BlockKey>& of,
                           MoveKind kind) {
    ASSERT_EQ(moves.size(), of.size());
    for (std::size_t i = 0; i < of.size(); ++i) {
      EXPECT_EQ(moves[i].key, of[i].mixed());
      EXPECT_EQ(moves[i].kind, kind);
    }
  }
};

TEST_F(KeyMoves, SayWhichKeysWereEvictedFromWhichSlots) {
  store(keys(1, 4));
  EXPECT_TRUE(moves().empty()) << "the caller commits, and knows it";
  WritableSlots slots = take(keys(7, 2));
  const std::vector<KeyMove> evicted = moves();
  expect_moves(evicted, {keys(4, 1)[0], keys(3, 1)[0]}, MoveKind::kEvicted);
  std::vector<SlotId> reused;
  for (const KeyMove& one : evicted) reused.push_back(one.slot);
  EXPECT_TRUE(std::is_permutation(reused.begin(), reused.end(), slots.slots().begin(),
                                  slots.slots().end()));
  EXPECT_TRUE(moves().empty()) << "they are taken once";
  tier.release(tier.abort(std::move(slots)));
}

TEST_F(KeyMoves, SayWhichKeysWereForgotten) {
  store(keys(1, 2));
  tier.forget_all();
  expect_moves(moves(), {keys(2, 1)[0], keys(1, 1)[0]}, MoveKind::kForgotten);
}

TEST_F(KeyMoves, SayWhichKeysWereWithdrawn) {
  store(keys(1, 3));
  Lease held = lease(keys(1, 3));
  const SlotId damaged = held.slots()[1];
  static_cast<void>(tier.withdraw(held, {&damaged, 1}));
  expect_moves(moves(), keys(2, 1), MoveKind::kWithdrawn);
  tier.release(std::move(held));
}

class NoKeyMoves : public TierFixture {
 protected:
  NoKeyMoves() : TierFixture(4, TierOptions{}) {}
};

TEST_F(NoKeyMoves, AreNotedWithoutTheOption) {
  store(keys(1, 2));
  tier.forget_all();
  std::vector<KeyMove> taken;
  TierMoves(tier.all()).take(SlabClassId(0), taken);
  EXPECT_TRUE(taken.empty());
}

}  // namespace
}  // namespace kvferry::cpu_tier
