// SPDX-License-Identifier: Apache-2.0
// Metadata of a shared tier that were damaged while nobody used it, as those of a kept file can be:
// whoever joins puts in order what cannot be, serves nothing wrong, and goes on.
#include "kvferry/cpu_tier/peers/tier_directory.hpp"

#include "shared_instance.hpp"

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

namespace kvferry::cpu_tier {
namespace {

constexpr std::uint32_t kNumSlots = Instance::kNumChunks * Instance::kChunkSlots;

class TierDamageTest : public ::testing::Test {
 protected:
  /// An instance stored these many keys, from 0 on, and left.
  void store_and_leave(std::size_t count) const {
    Instance gone(rig_, "gone");
    gone.store(0, count);
  }
  [[nodiscard]] static TierDirectory::Identity impatient(const std::string& name) {
    return {.name = name, .name_space = 1, .grace = std::chrono::nanoseconds(0)};
  }
  /// An instance can use every slot of the tier, sooner or later.
  void expect_all_slots_come_back() const {
    Instance last(rig_, impatient("last"));
    bool all = false;
    for (int i = 0; i < 1000 && !all; ++i) {
      auto reserved = last.all().reserve(Instance::kOnly, keys(1000, kNumSlots));
      all = reserved.ok();
      if (!all) {
        last.tend();
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    }
    EXPECT_TRUE(all) << last.snapshot().num_set_aside << " of " << last.snapshot().num_slots
                     << " slots are aside for good, in " << last.num_chunks() << " chunks";
  }
  void spoil_word(SlotPlace place, SlotWord word) const { rig_.line(place).word.store(word.bits); }
  /// Copies a slot's line of metadata to another slot's.
  void copy_line(SlotPlace from, SlotPlace to) const {
    std::memcpy(static_cast<void*>(&rig_.line(to)), static_cast<const void*>(&rig_.line(from)),
                sizeof(SlotLine));
  }

  const SharedTierRig rig_{Instance::kShape};
  std::vector<SlotPlace> refilled_;
};

TEST_F(TierDamageTest, AFreeSlotThatSomebodyReadsIsSetAsideAndComesBack) {
  store_and_leave(1);
  {
    // Bits of instances that there are not are cleared by who joins.
    Instance other(rig_, "other");
    for (std::uint32_t i = 0; i < Instance::kChunkSlots; ++i) {
      const SlotWord word = rig_.word({ChunkId(0), i});
      if (word.state() == SharedState::kFree) {
        spoil_word({ChunkId(0), i}, word.with_lessee(other.directory().self()));
      }
    }
    Instance next(rig_, "next");
    EXPECT_EQ(next.store(100, kNumSlots - 3).size(), kNumSlots - 3);
    EXPECT_EQ(next.snapshot().num_set_aside, 3U);
    EXPECT_EQ(next.directory().num_damaged(), 3U);
  }
  expect_all_slots_come_back();
}

TEST_F(TierDamageTest, AStateThatThereIsNotIsSetAsideAndComesBack) {
  store_and_leave(kNumSlots);
  for (std::uint64_t state = 5; state < 8; ++state) {
    const SlotPlace place{ChunkId(static_cast<std::uint32_t>(state) - 4), 2};
    spoil_word(place, {(rig_.word(place).bits & ~std::uint64_t{7}) | state});
  }
  {
    Instance next(rig_, "next");
    next.store(100, 13);
    EXPECT_EQ(next.snapshot().num_set_aside, 3U);
    EXPECT_FALSE(next.all().reserve(Instance::kOnly, keys(200, 14)).ok());
  }
  expect_all_slots_come_back();
}

// What was withdrawn had a key, which proves that it was.
TEST_F(TierDamageTest, AWordThatIsWithdrawnAndHasNoKeyIsSetAsideAndComesBack) {
  store_and_leave(1);
  SharedState state = SharedState::kReadable;
  std::uint32_t num_spoilt = 0;
  for (std::uint32_t i = 0; i < Instance::kChunkSlots; ++i) {
    const SlotWord word = rig_.word({ChunkId(0), i});
    if (word.state() != SharedState::kFree) continue;
    spoil_word({ChunkId(0), i}, word.with(state).as_withdrawn());
    state = SharedState::kDying;
    ++num_spoilt;
  }
  ASSERT_EQ(num_spoilt, 3U);
  {
    Instance next(rig_, "next");
    next.store(100, kNumSlots - num_spoilt);
    EXPECT_EQ(next.snapshot().num_set_aside, num_spoilt);
  }
  expect_all_slots_come_back();
}

TEST_F(TierDamageTest, ASlotThatNobodyFillsWaitsForTheGrace) {
  store_and_leave(kNumSlots);
  spoil_word({ChunkId(1), 1}, rig_.word({ChunkId(1), 1}).with(SharedState::kFilling));
  {
    Instance next(rig_, "next");
    next.store(100, 15);
    EXPECT_EQ(next.snapshot().num_set_aside, 1U);
  }
  expect_all_slots_come_back();
}

// Its chunk was divided into fewer slots, as far as its record says.
TEST_F(TierDamageTest, WordsBeyondWhatAChunkIsDividedIntoAreLookedAtBeforeTheyAreUsed) {
  store_and_leave(kNumSlots);
  for (ChunkId chunk; chunk.value() < Instance::kNumChunks; chunk = chunk.next()) {
    rig_.unsafe_chunk(chunk).num_slots.store(chunk.value() % 3);
  }
  {
    Instance next(rig_, "next");
    EXPECT_EQ(next.store(100, kNumSlots).size(), std::size_t{kNumSlots});
  }
  expect_all_slots_come_back();
}

TEST_F(TierDamageTest, AChunkOfNonsenseIsTakenAndDividedAnew) {
  store_and_leave(kNumSlots);
  rig_.unsafe_chunk(ChunkId(0)).num_slots.store(0xffffffff);
  rig_.unsafe_chunk(ChunkId(1)).slab_class.store(0xffffffff);
  rig_.unsafe_chunk(ChunkId(2)).name_space.store(77);
  rig_.unsafe_chunk(ChunkId(3)).num_quarantines.store(~std::uint64_t{0});
  expect_all_slots_come_back();
}

TEST_F(TierDamageTest, AChunkOfAnOwnerThatThereIsNotIsNobodys) {
  store_and_leave(kNumSlots);
  const std::uint64_t epoch = rig_.instance(0).epoch.load();
  rig_.unsafe_chunk(ChunkId(0)).owner.store(0xff);
  rig_.unsafe_chunk(ChunkId(1)).owner.store(ChunkOwner::of(InstanceId(0), epoch).bits);
  rig_.unsafe_chunk(ChunkId(2)).owner.store(ChunkOwner::of(InstanceId(5), 0).bits);
  spoil_word({ChunkId(2), 3}, rig_.word({ChunkId(2), 3}).with(SharedState::kFilling));
  rig_.unsafe_chunk(ChunkId(3)).owner.store(~std::uint64_t{0});
  expect_all_slots_come_back();
}

TEST_F(TierDamageTest, WhatALivingInstanceOwnsIsNotTakenForDamage) {
  Instance a(rig_, "a");
  WritableSlots filling = a.take(0, 2);
  a.store(10, 12);
  const Instance b(rig_, "b");
  EXPECT_EQ(a.num_chunks(), 4U);
  EXPECT_EQ(rig_.word({ChunkId(0), 0}).state(), SharedState::kFilling);
  a.tier().commit(std::move(filling));
  EXPECT_EQ(a.held(0, 2), 2U);
}

TEST_F(TierDamageTest, ARecordOfALockThatThereIsNotIsFreed) {
  for (std::uint32_t i = 0; i < kMaxInstances; ++i) {
    constexpr std::array<std::uint64_t, 4> kNonsense{1, ~std::uint64_t{0}, std::uint64_t{1} << 63U,
                                                     (std::uint64_t{1} << 61U) + 3};
    rig_.unsafe_instance(i).lock.store(kNonsense[i % kNonsense.size()]);
  }
  const auto joined = rig_.join("a");
  EXPECT_EQ(joined->num_damaged(), std::uint64_t{kMaxInstances});
  std::uint32_t num_in_use = 0;
  for (std::uint32_t i = 0; i < kMaxInstances; ++i) {
    num_in_use += rig_.instance(i).lock.load() != 0 ? 1 : 0;
  }
  EXPECT_EQ(num_in_use, 1U);
}

TEST_F(TierDamageTest, TheBitOfAnInstanceThatHasJustJoinedMeansNothing) {
  store_and_leave(4);
  spoil_word({ChunkId(0), 1}, rig_.word({ChunkId(0), 1}).with_lessee(InstanceId(0)));
  Instance next(rig_, "next");
  EXPECT_EQ(rig_.word({ChunkId(0), 1}).lessees(), 0U);
  next.directory().look_around();
  EXPECT_EQ(next.num_readable(0, 4), 4U);
}

TEST_F(TierDamageTest, TheBitsOfInstancesThatThereAreNotKeepNoSlot) {
  store_and_leave(kNumSlots);
  for (std::uint32_t i = 0; i < Instance::kChunkSlots; ++i) {
    spoil_word({ChunkId(1), i}, rig_.word({ChunkId(1), i}).with_lessee(InstanceId(3 + 7 * i)));
  }
  expect_all_slots_come_back();
}

TEST_F(TierDamageTest, TheBitsOfLivingInstancesAreLeftToThem) {
  store_and_leave(4);
  Instance reader(rig_, "reader");
  reader.directory().look_around();
  Lease lease = reader.lease(0, 4);
  spoil_word({ChunkId(0), 1}, rig_.word({ChunkId(0), 1}).with_lessee(InstanceId(9)));
  Instance next(rig_, "next");
  EXPECT_EQ(rig_.word({ChunkId(0), 0}).lessees(), 1U);
  EXPECT_EQ(rig_.word({ChunkId(0), 1}).lessees(), 1U);
  reader.tier().release(std::move(lease));
}

// Bytes lie at a slot's place, whatever its line says: a line that came from another slot's would
// serve that one's key with these bytes.
TEST_F(TierDamageTest, ALineOfAnotherSlotIsServedNeitherAsAGuestNorWhenItIsAdopted) {
  store_and_leave(4);
  copy_line({ChunkId(0), 0}, {ChunkId(0), 1});
  copy_line({ChunkId(0), 2}, {ChunkId(0), 3});
  spoil_word({ChunkId(0), 2}, rig_.word({ChunkId(0), 2}).with(SharedState::kFree));
  Instance next(rig_, "next");
  next.directory().look_around();
  for (std::uint32_t i = 0; i < 4; ++i) {
    const auto key_there = next.directory().records().key_of({ChunkId(0), i});
    EXPECT_EQ(key_there.has_value(), i == 0 || i == 2) << "slot " << i;
  }
  EXPECT_LE(next.num_readable(0, 4), 1U);
  next.store(100, 15);
  EXPECT_LE(next.num_readable(0, 4), 1U) << "adopted";
}

// A slot was being filled anew, and its word says that it is readable.
TEST_F(TierDamageTest, AKeyThatIsOlderThanItsWordIsServedNeitherAsAGuestNorWhenItIsAdopted) {
  {
    Instance gone(rig_, "gone");
    gone.store(0, kNumSlots);
    // Filled anew, and given back: the keys beside the words are those of before.
    WritableSlots filling = gone.take(100, 3);
    for (std::uint32_t i = 0; i < 3; ++i) {
      refilled_.push_back(place_of(filling.slots()[i], Instance::kChunkSlots));
    }
    gone.tier().release(gone.tier().abort(std::move(filling)));
  }
  for (const SlotPlace place : refilled_) {
    spoil_word(place, rig_.word(place).with(SharedState::kReadable));
  }
  Instance next(rig_, "next");
  next.directory().look_around();
  for (const SlotPlace place : refilled_) {
    EXPECT_EQ(next.directory().records().key_of(place), std::nullopt);
  }
  EXPECT_EQ(next.num_readable(0, kNumSlots), kNumSlots - 3U) << "and no other is lost";
}

// Its slots would begin elsewhere, or be of another class.
TEST_F(TierDamageTest, AKeyWhoseChunkIsDividedOtherwiseIsNotServed) {
  store_and_leave(kNumSlots);
  rig_.unsafe_chunk(ChunkId(0)).num_slots.store(2);
  rig_.unsafe_chunk(ChunkId(1)).slab_class.store(1);
  const auto looking = rig_.join("a");
  for (std::uint32_t i = 0; i < 2; ++i) {
    EXPECT_EQ(looking->records().key_of({ChunkId(0), i}), std::nullopt);
    EXPECT_EQ(looking->records().key_of({ChunkId(1), i}), std::nullopt);
    EXPECT_NE(looking->records().key_of({ChunkId(2), i}), std::nullopt);
  }
}

TEST_F(TierDamageTest, HintsOfSlotsThatThereAreNotAreOverwritten) {
  for (auto& hint : rig_.hints()) hint.store(~std::uint64_t{0} - 1);
  Instance a(rig_, "a");
  a.store(0, kNumSlots);
  Instance b(rig_, "b");
  b.directory().look_around();
  EXPECT_EQ(b.num_readable(0, kNumSlots), std::size_t{kNumSlots});
}

}  // namespace
}  // namespace kvferry::cpu_tier
