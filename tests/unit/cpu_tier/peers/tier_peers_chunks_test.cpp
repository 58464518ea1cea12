// SPDX-License-Identifier: Apache-2.0
// Tiers of several instances over one shared memory: chunks that are left, adopted and given up.
#include "kvferry/cpu_tier/slots/tier.hpp"
#include "kvferry/cpu_tier/slots/tier_promises.hpp"

#include "other_process.hpp"
#include "shared_instance.hpp"
#include "tier_peers_fixture.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <memory>
#include <span>
#include <thread>
#include <utility>
#include <vector>

namespace kvferry::cpu_tier {
namespace {

TEST_F(TierPeersTest, AClassIsTheSameOneWhereverItWasMadeAtAnotherTime) {
  const auto directory_a = rig_.join("a");
  const auto directory_b = rig_.join("b");
  auto a = std::make_unique<Tier>(Instance::kNumChunks, std::span<const std::uint32_t>{},
                                  Instance::kPlainLru, peers_in(directory_a.get()));
  Tier b(Instance::kNumChunks, {}, Instance::kPlainLru, peers_in(directory_b.get()));
  const SlabClassId few_of_a = a->add_class(2);
  const SlabClassId many_of_a = a->add_class(4);
  const SlabClassId many_of_b = b.add_class(4);
  a->grow_to(Instance::kNumChunks);
  b.grow_to(Instance::kNumChunks);
  for (const auto& [slab_class, first] : {std::pair(few_of_a, 0U), std::pair(many_of_a, 10U)}) {
    a->commit(std::move(a->reserve(slab_class, keys(first, 2))).value().hand_over());
  }
  EXPECT_EQ(b.lookup_prefix(many_of_b, keys(10, 2)).size(), 2U);
  const SlabClassId few_of_b = b.add_class(2);
  EXPECT_EQ(b.lookup_prefix(few_of_b, keys(0, 2)).size(), 2U);
  a.reset();
  for (ChunkId chunk; chunk.value() < Instance::kNumChunks; chunk = chunk.next()) {
    EXPECT_TRUE(!directory_a->owns(chunk) || directory_a->give_up(chunk));
  }
  // It takes all chunks, those that were left with what is in them.
  ASSERT_TRUE(b.reserve(many_of_b, keys(20, 10)).ok());
  const SlabSnapshot now = b.slab_snapshot();
  EXPECT_EQ(now.num_chunks, Instance::kNumChunks);
  EXPECT_EQ(now.classes[few_of_b.value()].tier.num_evictable, 2U);
  EXPECT_EQ(now.classes[many_of_b.value()].tier.num_evictable, 2U);
  b.check_invariants();
}

TEST_F(TierPeersTest, WhatAnInstanceLeftIsServedAndAdopted) {
  {
    Instance a(rig_, "a");
    a.store(0, 16);
  }
  Instance b(rig_, "b");
  EXPECT_EQ(b.held(0, 16), 16U) << "nobody's";
  EXPECT_EQ(b.num_chunks(), 0U);
  b.drop_guests();
  b.store(100, 1);
  EXPECT_GT(b.num_chunks(), 0U);
  const TierSnapshot now = b.snapshot();
  EXPECT_EQ(now.num_evictable, now.num_slots) << "what it took over stays until there is no room";
  EXPECT_EQ(b.num_readable(0, 16), 15U);
  EXPECT_EQ(b.held(100, 1), 1U);
}

TEST_F(TierPeersTest, AChunkIsNotAdoptedWhileItsGuestsAreLeased) {
  {
    Instance a(rig_, "a");
    a.store(0, 16);
  }
  Instance b(rig_, "b");
  Lease lease = b.lease(0, 16);
  EXPECT_FALSE(b.all().reserve(Instance::kOnly, keys(100, 1)).ok());
  EXPECT_EQ(b.num_chunks(), 0U);
  b.tier().release(std::move(lease));
  EXPECT_EQ(b.store(100, 1).size(), 1U);
}

TEST_F(TierPeersTest, AHitEndsWhenAChunkWithItsGuestsIsAdopted) {
  auto a = std::make_unique<Instance>(rig_, "a");
  a->store(0, 16);
  Instance b(rig_, "b");
  const PrefixHit hit = b.all().lookup_prefix(Instance::kOnly, keys(0, 4));
  ASSERT_EQ(hit.size(), 4U);
  // It is forgotten while it is read elsewhere, so its slots are free when they are released.
  a->all().forget_all();
  a.reset();
  b.store(100, 12);
  EXPECT_EQ(b.snapshot().num_evicted_total, 0U);
  EXPECT_FALSE(b.all().lease(hit, 4).ok());
}

TEST_F(TierPeersTest, APromisedBlockThatAPeerReadsWhenItsTurnComesStaysPromised) {
  Instance a(rig_, "a");
  TierPromises promises(a.all());
  a.store(0, 16);
  promises.promise(Instance::kOnly, keys(15, 1));
  Instance b(rig_, "b");
  Lease lease = b.lease(15, 1);
  a.store(100, 15);
  EXPECT_EQ(a.num_readable(15, 1), 1U);
  a.all().check_invariants();
  b.tier().release(std::move(lease));
}

TEST_F(TierPeersTest, ChunksOfAnotherNameSpaceAreClearedUnlessTheyAreRead) {
  {
    Instance a(rig_, "a", 1);
    a.store(0, 16);
  }
  Instance reader(rig_, "reader", 1);
  Lease lease = reader.lease(0, 1);
  Instance b(rig_, "b", 2);
  EXPECT_EQ(b.held(0, 1), 0U);
  EXPECT_EQ(b.store(100, 12).size(), 12U);
  EXPECT_FALSE(b.all().reserve(Instance::kOnly, keys(200, 16)).ok());
  EXPECT_EQ(reader.held(0, 1), 1U);
  reader.tier().release(std::move(lease));
}

TEST_F(TierPeersTest, ADuplicateInAChunkThatIsAdoptedIsForgotten) {
  auto a = std::make_unique<Instance>(rig_, "a");
  Instance b(rig_, "b");
  WritableSlots twice = b.take(0, 1);
  a->store(0, 12);
  b.tier().commit(std::move(twice));
  a.reset();
  b.store(100, 15);
  EXPECT_EQ(b.num_chunks(), 4U);
  EXPECT_EQ(b.snapshot().num_slots, 16U);
}

TEST_F(TierPeersTest, WhatADeadInstanceWasFillingIsSetAsideForItsGrace) {
  in_a_process_that_is_killed([this] {
    Instance a(rig_, "a");
    a.store(0, 14);
    const WritableSlots filling = a.take(14, 2);
    ::raise(SIGKILL);
  });
  Instance b(rig_, {.name = "b", .name_space = 1, .grace = std::chrono::milliseconds(50)});
  EXPECT_FALSE(b.all().reserve(Instance::kOnly, keys(100, 15)).ok());
  EXPECT_EQ(b.snapshot().num_set_aside, 2U);
  for (int i = 0; i < 1000 && b.snapshot().num_set_aside > 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    b.tend();
  }
  EXPECT_EQ(b.store(100, 16).size(), 16U);
}

TEST_F(TierPeersTest, WhoHasAllGivesUpWhatAnotherWants) {
  Instance a(rig_, "a");
  Instance b(rig_, "b");
  a.store(0, 16);
  EXPECT_FALSE(b.all().reserve(Instance::kOnly, keys(100, 4)).ok());
  a.tend();
  EXPECT_EQ(a.num_chunks(), 4U) << "nobody has said that he wants one";
  b.tend();
  a.all().hold_still();
  a.tend();
  EXPECT_EQ(a.num_chunks(), 4U) << "what a lookup has found may be evicted by its own step alone";
  a.all().end_step();
  EXPECT_EQ(a.num_chunks(), 3U) << "who is always found in a step starves nobody";
  a.all().hold_still();
  a.all().end_step();
  EXPECT_EQ(a.num_chunks(), 3U) << "given up once";
  a.tend();
  EXPECT_EQ(a.num_chunks(), 3U) << "there is one that the other can take";
  EXPECT_EQ(b.store(100, 4).size(), 4U);
  EXPECT_EQ(a.held(0, 16), 12U) << "the tail of the prefix went";
}

TEST_F(TierPeersTest, NobodyGivesUpWhatOthersRead) {
  Instance a(rig_, "a");
  Instance b(rig_, "b");
  a.store(0, 16);
  Lease lease = b.lease(0, 16);
  EXPECT_FALSE(b.all().reserve(Instance::kOnly, keys(100, 4)).ok());
  b.tend();
  a.tend();
  EXPECT_EQ(a.num_chunks(), 4U);
  EXPECT_EQ(a.held(0, 16), 16U);
  b.tier().release(std::move(lease));
}

// A chunk that cannot be taken now does not keep an instance from the others.
TEST_F(TierPeersTest, OfChunksThatAreLeftOneInUseIsPassed) {
  for (std::uint32_t number = 0; number < 16; ++number) {
    const SharedTierRig rig(Instance::kShape);
    std::make_unique<Instance>(rig, "a")->store(0, 16);
    Instance reader(rig, "reader");
    Lease lease = reader.lease(number, 1);
    Instance b(rig, "b", 2);
    EXPECT_TRUE(b.all().reserve(Instance::kOnly, keys(100, 12)).ok()) << number;
    EXPECT_EQ(b.num_chunks(), 3U);
    reader.tier().release(std::move(lease));
  }
}

TEST_F(TierPeersTest, AnOwnLoadFromAChunkThatWasLeftDoesNotKeepTheOthers) {
  std::make_unique<Instance>(rig_, "a")->store(0, 16);
  Instance b(rig_, "b");
  Lease lease = b.lease(12, 1);
  EXPECT_TRUE(b.all().reserve(Instance::kOnly, keys(100, 12)).ok());
  b.tier().release(std::move(lease));
}

// A stopped process can block nobody.
TEST_F(TierPeersTest, WhoReadsTheColdestChunkDoesNotKeepItsOwnerFromGivingOthers) {
  for (std::uint32_t number = 0; number < 16; ++number) {
    const SharedTierRig rig(Instance::kShape);
    Instance a(rig, "a");
    a.store(0, 16);
    Instance reader(rig, "reader");
    Lease lease = reader.lease(number, 1);
    Instance c(rig, "c");
    for (int round = 0; round < 40; ++round) {
      static_cast<void>(c.all().reserve(Instance::kOnly, keys(100, 4)).ok());
      c.tend();
      a.tend();
    }
    EXPECT_LT(a.num_chunks(), 4U) << number;
    EXPECT_EQ(a.num_readable(number, 1), 1U) << number;
    reader.tier().release(std::move(lease));
  }
}

TEST_F(TierPeersTest, AChunkThatNobodyCanTakeIsNotGivenInsteadOfOthers) {
  in_a_process_that_is_killed([this] {
    Instance x(rig_, {.name = "x", .grace = TierDirectory::Identity::kForEver});
    const WritableSlots filling = x.take(12, 1);
    ::raise(SIGKILL);
  });
  Instance a(rig_, "a", 2);
  a.store(0, 12);
  Instance c(rig_, "c", 2);
  for (int round = 0; round < 40; ++round) {
    static_cast<void>(c.all().reserve(Instance::kOnly, keys(100, 4)).ok());
    c.tend();
    a.tend();
  }
  EXPECT_LT(a.num_chunks(), 3U);
}

}  // namespace
}  // namespace kvferry::cpu_tier
