// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/peers/slot_word.hpp"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace kvferry::cpu_tier {
namespace {

constexpr InstanceId kFirst{0};
constexpr InstanceId kLast{kMaxInstances - 1};
constexpr std::array kStates = {SharedState::kFree, SharedState::kFilling, SharedState::kReadable,
                                SharedState::kDying, SharedState::kQuarantined};

class SlotWordTest : public ::testing::Test {
 protected:
  /// The word in `state`, read by `lessees`, or by nobody.
  void become(SharedState state, const std::vector<InstanceId>& lessees = {}) {
    SlotWord word = SlotWord{}.with(state);
    for (const InstanceId lessee : lessees) word = word.with_lessee(lessee);
    word_.store(word.bits);
  }
  [[nodiscard]] SlotWord word() const { return {word_.load()}; }

  std::atomic<std::uint64_t> word_{0};
  SharedSlot slot_{word_};
};

TEST_F(SlotWordTest, GoesThroughItsLife) {
  EXPECT_EQ(word().state(), SharedState::kFree) << "memory begins as zeros";
  ASSERT_TRUE(slot_.begin_fill());
  EXPECT_EQ(word().generation(), 1U);
  ASSERT_TRUE(slot_.publish());
  ASSERT_TRUE(slot_.lease(kFirst));
  ASSERT_TRUE(slot_.lease(kLast));
  EXPECT_FALSE(slot_.evict()) << "it is read";
  slot_.end_lease(kFirst);
  EXPECT_FALSE(slot_.evict());
  EXPECT_TRUE(word().is_leased_by(kLast));
  EXPECT_FALSE(word().is_leased_by(kFirst));
  slot_.end_lease(kLast);
  EXPECT_EQ(word().generation(), 1U);
  ASSERT_TRUE(slot_.evict());
  ASSERT_TRUE(slot_.begin_fill());
  EXPECT_EQ(word(),
            SlotWord{}.of_next_generation().of_next_generation().with(SharedState::kFilling))
      << "nothing of its past is left";
  ASSERT_TRUE(slot_.publish());
  ASSERT_TRUE(slot_.lease(kLast));
  EXPECT_FALSE(slot_.refill()) << "it is read";
  slot_.end_lease(kLast);
  ASSERT_TRUE(slot_.refill());
  EXPECT_EQ(word().generation(), 3U);
  EXPECT_FALSE(word().touched());
}

TEST_F(SlotWordTest, EveryTransitionStartsFromItsOwnStateOnly) {
  using Call = bool (SharedSlot::*)();
  struct Transition {
    Call call;
    SharedState from;
    SharedState to;
    bool waits_for_readers;
  };
  constexpr std::array kTransitions = {
      Transition{&SharedSlot::begin_fill, SharedState::kFree, SharedState::kFilling, true},
      Transition{&SharedSlot::refill, SharedState::kReadable, SharedState::kFilling, true},
      Transition{&SharedSlot::publish, SharedState::kFilling, SharedState::kReadable, false},
      Transition{&SharedSlot::abandon, SharedState::kFilling, SharedState::kFree, false},
      Transition{&SharedSlot::evict, SharedState::kReadable, SharedState::kFree, true},
      Transition{&SharedSlot::free_dying, SharedState::kDying, SharedState::kFree, true},
      Transition{&SharedSlot::quarantine, SharedState::kFilling, SharedState::kQuarantined, false},
      Transition{&SharedSlot::free_quarantined, SharedState::kQuarantined, SharedState::kFree,
                 false}};
  for (const Transition& transition : kTransitions) {
    for (const SharedState state : kStates) {
      for (const bool is_read : {false, true}) {
        become(state, is_read ? std::vector{kLast} : std::vector<InstanceId>{});
        const SlotWord before = word();
        const bool may = state == transition.from && !(is_read && transition.waits_for_readers);
        EXPECT_EQ((slot_.*transition.call)(), may)
            << "from " << static_cast<int>(state) << " to " << static_cast<int>(transition.to);
        EXPECT_EQ(word().state(), may ? transition.to : state);
        EXPECT_EQ(word().lessees(), before.lessees());
      }
    }
  }
}

TEST_F(SlotWordTest, OnlyReadableSlotsAreLeased) {
  for (const SharedState state : kStates) {
    become(state);
    EXPECT_EQ(slot_.lease(kLast), state == SharedState::kReadable);
    EXPECT_EQ(word().lessees() != 0, state == SharedState::kReadable);
  }
}

TEST_F(SlotWordTest, WhatIsForgottenIsFreeOnceNobodyReadsIt) {
  become(SharedState::kReadable);
  EXPECT_EQ(slot_.forget(), SharedState::kFree);
  EXPECT_EQ(word().state(), SharedState::kFree);
  become(SharedState::kReadable, {kFirst, kLast});
  EXPECT_EQ(slot_.forget(), SharedState::kDying);
  EXPECT_FALSE(slot_.lease(kFirst)) << "nobody else gets it";
  slot_.end_lease(kFirst);
  EXPECT_FALSE(slot_.free_dying());
  slot_.end_lease(kLast);
  EXPECT_TRUE(slot_.free_dying());
  EXPECT_EQ(word().state(), SharedState::kFree);
}

TEST_F(SlotWordTest, AWithdrawnSlotIsNeitherLeasedNorUsedAgain) {
  for (const bool is_read : {false, true}) {
    become(SharedState::kReadable, is_read ? std::vector{kFirst} : std::vector<InstanceId>{});
    slot_.withdraw();
    EXPECT_TRUE(word().withdrawn());
    EXPECT_TRUE(word().is_sound());
    EXPECT_FALSE(word().can_be_read());
    EXPECT_FALSE(slot_.lease(kLast));
    EXPECT_FALSE(slot_.refill());
    EXPECT_FALSE(slot_.evict());
    EXPECT_EQ(word().state(), SharedState::kReadable) << "its owner has not forgotten it";
    EXPECT_EQ(slot_.end_lease(kFirst), is_read);
    EXPECT_EQ(slot_.forget(), SharedState::kDying);
    EXPECT_FALSE(slot_.free_dying());
    EXPECT_FALSE(slot_.begin_fill());
    EXPECT_EQ(word().state(), SharedState::kDying);
    EXPECT_TRUE(word().is_sound());
  }
}

// Its owner forgot it while it was read, and the reader finds out then.
TEST_F(SlotWordTest, ADyingSlotThatIsWithdrawnStaysDying) {
  become(SharedState::kReadable, {kFirst});
  ASSERT_EQ(slot_.forget(), SharedState::kDying);
  slot_.withdraw();
  slot_.end_lease(kFirst);
  EXPECT_FALSE(slot_.free_dying());
}

// The same, and the reader is its owner, whose leases are not in the word.
TEST_F(SlotWordTest, AFreeSlotThatIsWithdrawnIsDying) {
  become(SharedState::kReadable);
  ASSERT_EQ(slot_.forget(), SharedState::kFree);
  slot_.withdraw();
  EXPECT_EQ(word().state(), SharedState::kDying);
  EXPECT_TRUE(word().withdrawn());
  EXPECT_FALSE(slot_.free_dying());
  EXPECT_FALSE(slot_.begin_fill());
}

TEST_F(SlotWordTest, AWordIsDamagedIfItIsWithdrawnAndWasNeverRead) {
  for (const SharedState state : kStates) {
    become(state);
    const bool was_read = state == SharedState::kReadable || state == SharedState::kDying;
    EXPECT_EQ(word().as_withdrawn().is_sound(), was_read);
    EXPECT_FALSE(word().as_withdrawn().doubted().withdrawn());
  }
}

TEST_F(SlotWordTest, ALeaseIsSeenAsATouchOnce) {
  become(SharedState::kReadable);
  EXPECT_FALSE(slot_.take_touched());
  ASSERT_TRUE(slot_.lease(kFirst));
  slot_.end_lease(kFirst);
  EXPECT_TRUE(slot_.take_touched());
  EXPECT_FALSE(slot_.take_touched());
  EXPECT_EQ(word().state(), SharedState::kReadable);
}

TEST_F(SlotWordTest, AReaderHasOneLease) {
  become(SharedState::kReadable);
  ASSERT_TRUE(slot_.lease(kFirst));
  EXPECT_FALSE(slot_.lease(kFirst));
  slot_.end_lease(kFirst);
  EXPECT_EQ(word().lessees(), 0U);
  EXPECT_TRUE(slot_.lease(kFirst));
}

TEST_F(SlotWordTest, TheLastGenerationIsFollowedByTheFirst) {
  SlotWord last;
  for (int i = 0; i < 0xffffff; ++i) last = last.of_next_generation();
  word_.store(last.bits);
  EXPECT_EQ(word().generation(), 0xffffffU);
  ASSERT_TRUE(slot_.begin_fill());
  EXPECT_EQ(word(), SlotWord{}.with(SharedState::kFilling));
}

// Readers check what the owner wrote: while they hold a lease, it is what was published.
TEST_F(SlotWordTest, WhatALesseeReadsIsWhatWasPublished) {
  constexpr std::uint32_t kNumReaders = 3;
  constexpr std::uint32_t kNumLives = 500;
  std::atomic<std::uint64_t> content{0};  // of the slot: its generation, twice
  std::atomic<bool> ended{false};
  std::atomic<std::uint64_t> num_read{0};
  std::vector<std::jthread> readers;
  for (std::uint32_t i = 0; i < kNumReaders; ++i) {
    readers.emplace_back([&, reader = InstanceId(i)] {
      SharedSlot slot(word_);
      while (!ended.load(std::memory_order_relaxed)) {
        if (!slot.lease(reader)) continue;
        const std::uint32_t generation = slot.load().generation();
        for (int look = 0; look < 3; ++look) {
          ASSERT_EQ(content.load(std::memory_order_relaxed),
                    std::uint64_t{generation} << 32U | generation);
        }
        num_read.fetch_add(1, std::memory_order_relaxed);
        slot.end_lease(reader);
      }
    });
  }
  for (std::uint32_t life = 0; life < kNumLives || num_read.load() < kNumLives / 10; ++life) {
    if (life % 3 == 0) {
      ASSERT_TRUE(slot_.begin_fill());
    } else {
      while (!slot_.refill()) std::this_thread::yield();
    }
    const std::uint64_t generation = slot_.load().generation();
    content.store(0, std::memory_order_relaxed);
    content.store(generation << 32U | generation, std::memory_order_relaxed);
    ASSERT_TRUE(slot_.publish());
    for (int wait = 0; wait < 200 && slot_.load().lessees() == 0; ++wait) {
    }
    if (life % 3 != 2) continue;
    if (life % 2 == 0) {
      while (!slot_.evict()) std::this_thread::yield();
    } else if (slot_.forget() == SharedState::kDying) {
      while (!slot_.free_dying()) std::this_thread::yield();
    }
  }
  ended.store(true);
}

}  // namespace
}  // namespace kvferry::cpu_tier
