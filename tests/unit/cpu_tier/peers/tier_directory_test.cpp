// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/peers/tier_directory.hpp"

#include "kvferry/base/error.hpp"

#include "other_process.hpp"
#include "shared_tier_rig.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <unistd.h>
#include <vector>

namespace kvferry::cpu_tier {
namespace {

constexpr std::uint32_t kNumChunks = 4;
constexpr std::uint32_t kChunkSlots = 8;
constexpr ChunkShape kWhole{.num_slots = kChunkSlots, .slab_class = 0};

class TierDirectoryTest : public ::testing::Test {
 protected:
  static ChunkId take(TierDirectory& directory, const ChunkShape& shape = kWhole) {
    const std::optional<ChunkId> chunk = directory.take_chunk();
    EXPECT_TRUE(chunk);
    directory.divide(chunk.value(), shape);
    return chunk.value();
  }
  [[nodiscard]] std::uint32_t num_records() const {
    std::uint32_t count = 0;
    for (std::uint32_t i = 0; i < kMaxInstances; ++i) {
      count += rig_.instance(i).lock.load() != 0 ? 1 : 0;
    }
    return count;
  }

  const SharedTierRig rig_{{kNumChunks, kTierPageBytes, kChunkSlots, 1}};
};

TEST_F(TierDirectoryTest, TellsHowTheChunksOfItsNameSpaceAreDividedAndWhatOthersHold) {
  const auto a = rig_.join("a");
  const auto b = rig_.join("b");
  const auto other = rig_.join("other", 2);
  EXPECT_TRUE(b->records().shapes().empty());
  const ChunkShape half{.num_slots = kChunkSlots / 2, .slab_class = 1};
  const ChunkId first = take(*a);
  take(*a, half);
  take(*b, half);
  take(*other, {.num_slots = 1, .slab_class = 0});
  for (std::uint32_t i = 0; i < 3; ++i) ASSERT_TRUE(rig_.store(*a, {first, i}, i));
  std::vector<ChunkShape> shapes = b->records().shapes();
  std::sort(shapes.begin(), shapes.end(), [](const ChunkShape& one, const ChunkShape& another) {
    return one.num_slots < another.num_slots;
  });
  EXPECT_EQ(shapes, (std::vector{half, kWhole}));
  EXPECT_EQ(a->records().num_readable_of_others(), 0U);
  EXPECT_EQ(b->records().num_readable_of_others(), 3U);
  EXPECT_EQ(other->records().num_readable_of_others(), 0U);
}

TEST_F(TierDirectoryTest, WhatOneStoresAnotherLeases) {
  const auto a = rig_.join("a");
  const auto b = rig_.join("b");
  EXPECT_NE(a->self(), b->self());
  const SlotPlace place{take(*a), 3};
  EXPECT_FALSE(b->leases().has(rig_.key(7)));
  ASSERT_TRUE(rig_.store(*a, place, 7));
  EXPECT_TRUE(b->leases().has(rig_.key(7)));
  EXPECT_FALSE(b->leases().has(rig_.key(8)));
  const auto leased = b->leases().lease(rig_.key(7));
  ASSERT_EQ(leased, place);
  EXPECT_TRUE(rig_.is_right(rig_.slot(*leased), 7));
  EXPECT_FALSE(a->evict(place)) << "b reads it";
  b->leases().end_lease(place);
  EXPECT_TRUE(a->evict(place));
  EXPECT_FALSE(b->leases().has(rig_.key(7)));
  EXPECT_FALSE(b->leases().lease(rig_.key(7)));
}

TEST_F(TierDirectoryTest, NothingIsFoundBeforeItIsPublished) {
  const auto a = rig_.join("a");
  const auto b = rig_.join("b");
  const SlotPlace place{take(*a), 0};
  ASSERT_TRUE(a->begin_fill(place));
  EXPECT_FALSE(b->leases().lease(rig_.key(7)));
  EXPECT_TRUE(a->slot(place).abandon());
  EXPECT_FALSE(b->leases().lease(rig_.key(7)));
  EXPECT_TRUE(a->begin_fill(place));
  a->publish(place, rig_.key(8));
  EXPECT_FALSE(b->leases().has(rig_.key(7)));
  EXPECT_TRUE(b->leases().has(rig_.key(8)));
}

TEST_F(TierDirectoryTest, AHintOfWhatTheSlotHeldBeforeLeadsNowhere) {
  const auto a = rig_.join("a");
  const auto b = rig_.join("b");
  const SlotPlace place{take(*a), 0};
  ASSERT_TRUE(rig_.store(*a, place, 7));
  ASSERT_TRUE(a->evict(place));
  ASSERT_TRUE(rig_.store(*a, place, 8));
  EXPECT_FALSE(b->leases().lease(rig_.key(7)));
  EXPECT_EQ(rig_.word(place).lessees(), 0U);
}

// A prefix ends at the first block that is not found.
TEST_F(TierDirectoryTest, WhatIsHeldIsFoundHoweverOftenSlotsWereUsedAnew) {
  constexpr std::uint32_t kManySlots = 256;
  const SharedTierRig rig({1, 64 * kTierPageBytes, kManySlots, 1});
  const auto a = rig.join("a");
  const auto b = rig.join("b");
  const ChunkId chunk = take(*a, {.num_slots = kManySlots, .slab_class = 0});
  std::uint64_t next_key = 0;
  for (int round = 0; round < 20; ++round) {
    for (std::uint32_t i = 0; i < kManySlots; ++i) {
      const SlotPlace place{chunk, i};
      ASSERT_TRUE(round == 0 || a->evict(place));
      ASSERT_TRUE(rig.store(*a, place, next_key++));
    }
  }
  std::size_t num_found = 0;
  for (std::uint32_t i = 1; i <= kManySlots; ++i)
    num_found += b->leases().has(rig.key(next_key - i));
  EXPECT_EQ(num_found, kManySlots);
}

TEST_F(TierDirectoryTest, NameSpacesDoNotSeeEachOther) {
  const auto a = rig_.join("a", 1);
  const auto b = rig_.join("b", 2);
  const SlotPlace place{take(*a), 0};
  ASSERT_TRUE(rig_.store(*a, place, 7));
  EXPECT_FALSE(b->leases().has(rig_.key(7)));
  EXPECT_FALSE(b->leases().lease(rig_.key(7)));
  EXPECT_TRUE(a->give_up(place.chunk));
  while (!b->owns(place.chunk)) ASSERT_TRUE(b->take_chunk());
  EXPECT_FALSE(b->records().is_of_name_space(place.chunk));
  EXPECT_FALSE(b->records().key_of(place)) << "another model's";
  EXPECT_TRUE(b->evict(place)) << "its memory can be had";
}

TEST_F(TierDirectoryTest, AnInstanceHasOneLeaseOnASlot) {
  const auto a = rig_.join("a");
  const auto b = rig_.join("b");
  const SlotPlace place{take(*a), 0};
  ASSERT_TRUE(rig_.store(*a, place, 7));
  ASSERT_TRUE(b->leases().lease(rig_.key(7)));
  EXPECT_FALSE(b->leases().lease(rig_.key(7)));
  EXPECT_FALSE(a->evict(place));
  EXPECT_EQ(a->slot(place).forget(), SharedState::kDying);
  EXPECT_FALSE(b->leases().lease(rig_.key(7))) << "forgotten";
  EXPECT_FALSE(a->slot(place).free_dying()) << "b still reads it";
  b->leases().end_lease(place);
  EXPECT_TRUE(a->slot(place).free_dying());
}

TEST_F(TierDirectoryTest, AChunkHasOneOwner) {
  const auto a = rig_.join("a");
  const auto b = rig_.join("b");
  std::uint32_t num_taken = 0;
  while (true) {
    const auto of_a = a->take_chunk();
    const auto of_b = b->take_chunk();
    EXPECT_TRUE(!of_a || (a->owns(*of_a) && !b->owns(*of_a)));
    EXPECT_TRUE(!of_b || (b->owns(*of_b) && !a->owns(*of_b)));
    num_taken += (of_a ? 1 : 0) + (of_b ? 1 : 0);
    if (!of_a && !of_b) break;
  }
  EXPECT_EQ(num_taken, kNumChunks);
}

TEST_F(TierDirectoryTest, ChunksBeyondWhatIsReadyAreNotTaken) {
  const auto a = rig_.join("a");
  a->set_reach(0);
  EXPECT_FALSE(a->take_chunk());
  a->set_reach(1);
  EXPECT_EQ(a->look_around(), 1U);
  EXPECT_EQ(a->take_chunk(), ChunkId(0));
  EXPECT_FALSE(a->take_chunk());
}

TEST_F(TierDirectoryTest, WhatIsBeyondTheReachIsNotLeased) {
  const auto a = rig_.join("a");
  const auto b = rig_.join("b");
  const SlotPlace place{take(*a), 0};
  ASSERT_TRUE(rig_.store(*a, place, 7));
  b->set_reach(place.chunk.value());
  EXPECT_FALSE(b->leases().lease(rig_.key(7)));
  b->set_reach(place.chunk.value() + 1);
  EXPECT_EQ(b->leases().lease(rig_.key(7)), place);
  b->leases().end_lease(place);
}

TEST_F(TierDirectoryTest, NobodyTakesMoreThanHeMay) {
  const auto a = rig_.join(TierDirectory::Identity{.name = "a", .name_space = 1, .most_chunks = 2});
  const ChunkId one = take(*a);
  take(*a);
  EXPECT_FALSE(a->take_chunk());
  EXPECT_TRUE(a->give_up(one));
  EXPECT_TRUE(a->take_chunk());
}

TEST_F(TierDirectoryTest, WhatIsDoubtedIsNotFoundAgainUntilItIsStoredAnew) {
  const auto a = rig_.join("a");
  const auto b = rig_.join("b");
  const SlotPlace place{take(*a), 0};
  ASSERT_TRUE(rig_.store(*a, place, 7));
  ASSERT_TRUE(b->leases().lease(rig_.key(7)));
  b->leases().shun(place);
  b->leases().end_lease(place);
  EXPECT_FALSE(b->leases().lease(rig_.key(7)));
  ASSERT_TRUE(a->evict(place));
  ASSERT_TRUE(rig_.store(*a, place, 7));
  EXPECT_EQ(b->leases().lease(rig_.key(7)), place);
  b->leases().end_lease(place);
}

TEST_F(TierDirectoryTest, WhoLeavesTheNameSpaceFindsAndIsFoundNoMore) {
  const auto a = rig_.join("a");
  const auto b = rig_.join("b");
  const ChunkId chunk = take(*a);
  const ChunkId of_b = take(*b);
  ASSERT_TRUE(rig_.store(*b, {of_b, 0}, 7));
  a->leave_name_space();
  EXPECT_FALSE(a->leases().has(rig_.key(7)));
  ASSERT_TRUE(rig_.store(*a, {chunk, 0}, 8));
  EXPECT_FALSE(b->leases().has(rig_.key(8)));
  b->leave_name_space();
  EXPECT_FALSE(b->leases().has(rig_.key(8))) << "each has one of its own";
}

TEST_F(TierDirectoryTest, ANarrowedNameSpaceIsThatOfInstancesThatSaidTheSame) {
  const auto a = rig_.join("a");
  const auto b = rig_.join("b");
  const auto c = rig_.join("c");
  a->narrow_name_space(5);
  b->narrow_name_space(5);
  c->narrow_name_space(6);
  EXPECT_EQ(a->records().name_space(), b->records().name_space());
  ASSERT_TRUE(rig_.store(*a, {take(*a), 0}, 7));
  EXPECT_TRUE(b->leases().has(rig_.key(7)));
  EXPECT_FALSE(c->leases().has(rig_.key(7)));
  EXPECT_FALSE(rig_.join("d")->leases().has(rig_.key(7))) << "it has yet to say";
}

TEST_F(TierDirectoryTest, AChunkOfWhateverIsClearedUnlessSomebodyReadsIt) {
  auto a = rig_.join("a", 1);
  const ChunkId chunk = take(*a);
  ASSERT_TRUE(rig_.store(*a, {chunk, 0}, 7));
  ASSERT_TRUE(rig_.store(*a, {chunk, 1}, 8));
  const auto reader = rig_.join("reader", 1);
  ASSERT_TRUE(reader->leases().lease(rig_.key(8)));
  a.reset();
  const auto b = rig_.join("b", 2);
  while (!b->owns(chunk)) ASSERT_TRUE(b->take_chunk());
  EXPECT_FALSE(b->records().is_of_name_space(chunk));
  EXPECT_FALSE(b->clear(chunk));
  reader->leases().end_lease({chunk, 1});
  EXPECT_TRUE(b->clear(chunk));
}

TEST_F(TierDirectoryTest, EmptyChunksAreTakenBeforeThoseThatHoldSomething) {
  const auto a = rig_.join("a");
  const auto b = rig_.join("b");
  const ChunkId full = take(*a);
  const ChunkId emptied = take(*a);
  ASSERT_TRUE(rig_.store(*a, {full, 0}, 7));
  ASSERT_TRUE(rig_.store(*a, {emptied, 0}, 8));
  ASSERT_TRUE(a->evict({emptied, 0}));
  EXPECT_TRUE(a->give_up(full));
  EXPECT_TRUE(a->give_up(emptied));
  for (std::uint32_t i = 0; i < kNumChunks - 1; ++i) EXPECT_NE(b->take_chunk(), full);
  ASSERT_TRUE(b->leases().has(rig_.key(7))) << "nobody's, and served all the same";
  ASSERT_EQ(b->take_chunk(), full);
  EXPECT_EQ(b->records().shape_of(full).num_slots, kChunkSlots);
  EXPECT_EQ(b->records().key_of({full, 0}), rig_.key(7)) << "what is in it can be taken over";
}

TEST_F(TierDirectoryTest, WhoHasLookedAroundKnowsWhetherThereIsAnythingToFind) {
  auto a = rig_.join("a");
  EXPECT_FALSE(a->leases().is_alone()) << "it has not looked";
  const ChunkId chunk = take(*a);
  EXPECT_EQ(a->look_around(), kNumChunks - 1);
  EXPECT_TRUE(a->leases().is_alone());
  const auto b = rig_.join("b");
  const SlotPlace place{take(*b), 0};
  ASSERT_TRUE(rig_.store(*b, place, 7));
  EXPECT_FALSE(a->leases().has(rig_.key(7))) << "nor lease(): it finds it when it has looked again";
  a->look_around();
  EXPECT_FALSE(a->leases().is_alone());
  EXPECT_EQ(a->leases().lease(rig_.key(7)), place);
  a->leases().end_lease(place);
  ASSERT_TRUE(rig_.store(*a, {chunk, 0}, 8));
  a.reset();
  b->look_around();
  EXPECT_FALSE(b->leases().is_alone()) << "what somebody left can be found";
  EXPECT_TRUE(b->leases().has(rig_.key(8)));
}

TEST_F(TierDirectoryTest, WhoLeavesLeavesWhatItStored) {
  auto a = rig_.join("a");
  const SlotPlace place{take(*a), 0};
  ASSERT_TRUE(rig_.store(*a, place, 7));
  a.reset();
  EXPECT_EQ(num_records(), 0U);
  const auto b = rig_.join("a");
  EXPECT_EQ(b->leases().lease(rig_.key(7)), place);
  b->leases().end_lease(place);
}

TEST_F(TierDirectoryTest, BehindAKilledInstanceLeasesEndAndFillingSlotsAreQuarantined) {
  auto a = rig_.join(
      TierDirectory::Identity{.name = "a", .name_space = 1, .grace = std::chrono::hours(1)});
  const SlotPlace read_by_b{take(*a), 0};
  ASSERT_TRUE(rig_.store(*a, read_by_b, 7));
  in_a_process_that_is_killed([this] {
    TierDirectory& b = *rig_.join("b").release();
    const ChunkId chunk = b.take_chunk().value();
    b.divide(chunk, kWhole);
    const bool done =
        rig_.store(b, {chunk, 0}, 20) && b.begin_fill({chunk, 1}) && b.leases().lease(rig_.key(7));
    if (!done) ::_exit(1);
  });
  EXPECT_FALSE(a->evict(read_by_b));
  EXPECT_TRUE(a->leases().has(rig_.key(20))) << "before anybody has swept";
  const SweepReport report = a->sweep();
  EXPECT_EQ(report.num_instances, 1U);
  EXPECT_EQ(report.num_orphaned_chunks, 1U);
  EXPECT_EQ(report.num_quarantined_slots, 1U);
  EXPECT_EQ(report.num_ended_leases, 1U);
  EXPECT_TRUE(a->evict(read_by_b));
  EXPECT_EQ(num_records(), 1U);

  const auto leased = a->leases().lease(rig_.key(20));
  ASSERT_TRUE(leased);
  EXPECT_TRUE(rig_.is_right(rig_.slot(*leased), 20));
  a->leases().end_lease(*leased);
  while (!a->owns(leased->chunk)) ASSERT_TRUE(a->take_chunk());
  const SlotPlace doubted{leased->chunk, 1};
  EXPECT_FALSE(a->begin_fill(doubted)) << "a device may still write it";
  EXPECT_EQ(a->free_quarantined(), 0U);
  a.reset();
  const auto c = rig_.join(
      TierDirectory::Identity{.name = "c", .name_space = 1, .grace = std::chrono::nanoseconds(0)});
  while (!c->owns(leased->chunk)) ASSERT_TRUE(c->take_chunk());
  EXPECT_EQ(c->free_quarantined(), 1U);
  EXPECT_TRUE(c->begin_fill(doubted));
}

// Under MPS a server makes the copies of a process, and outlives it. The instance that takes the
// chunk over need not be under MPS itself.
TEST_F(TierDirectoryTest, WhatMayBeWrittenForEverStaysInQuarantineWhoeverOwnsIt) {
  using Identity = TierDirectory::Identity;
  in_a_process_that_is_killed([this] {
    TierDirectory& b =
        *rig_.join(Identity{.name = "b", .name_space = 1, .grace = Identity::kForEver}).release();
    const ChunkId chunk = b.take_chunk().value();
    b.divide(chunk, kWhole);
    if (!rig_.store(b, {chunk, 0}, 20) || !b.begin_fill({chunk, 1})) ::_exit(1);
  });
  const Identity hasty{.name = "a", .name_space = 1, .grace = std::chrono::nanoseconds(0)};
  for (int i = 0; i < 2; ++i) {
    const auto a = rig_.join(hasty);
    const auto readable = a->leases().lease(rig_.key(20));
    ASSERT_TRUE(readable);
    while (!a->owns(readable->chunk)) ASSERT_TRUE(a->take_chunk());
    EXPECT_EQ(a->free_quarantined(), 0U);
    EXPECT_FALSE(a->begin_fill({readable->chunk, 1}));
    a->leases().end_lease(*readable);
  }
}

TEST_F(TierDirectoryTest, LivingInstancesAreNotSwept) {
  const auto a = rig_.join("a");
  const auto b = rig_.join("b");
  const SlotPlace place{take(*b), 0};
  ASSERT_TRUE(b->begin_fill(place));
  EXPECT_EQ(a->sweep().num_instances, 0U);
  EXPECT_EQ(rig_.word(place).state(), SharedState::kFilling);
  EXPECT_TRUE(b->owns(place.chunk));
  ASSERT_TRUE(b->slot(place).abandon());
}

TEST_F(TierDirectoryTest, TheRecordsOfTheDeadAreGivenToWhoJoins) {
  for (std::uint32_t i = 0; i < 2 * kMaxInstances; ++i) {
    in_a_process_that_is_killed(
        [&] { static_cast<void>(rig_.join("dead-" + std::to_string(i)).release()); });
  }
  EXPECT_LE(num_records(), 1U) << "who joins sweeps";
  EXPECT_NO_THROW(static_cast<void>(rig_.join("a")));
}

TEST_F(TierDirectoryTest, OneMoreThanThereCanBeIsAnErrorThatNamesThemAll) {
  std::vector<std::unique_ptr<TierDirectory>> all;
  for (std::uint32_t i = 0; i < kMaxInstances; ++i) {
    all.push_back(rig_.join("engine-" + std::to_string(i)));
  }
  try {
    static_cast<void>(rig_.join("one-more"));
    ADD_FAILURE() << "no error";
  } catch (const ResourceError& error) {
    const std::string text = error.what();
    for (const std::string part : {"engine-0", "engine-31", rig_.path().c_str()}) {
      EXPECT_NE(text.find(part), std::string::npos) << part << " is not in: " << text;
    }
  }
  all.pop_back();
  EXPECT_NO_THROW(static_cast<void>(rig_.join("one-more")));
}

TEST_F(TierDirectoryTest, TwoOfOneNameAreAnError) {
  const auto a = rig_.join("a");
  EXPECT_THROW(static_cast<void>(rig_.join("a")), ResourceError);
}

}  // namespace
}  // namespace kvferry::cpu_tier
