// SPDX-License-Identifier: Apache-2.0
// Engines that come to a shared tier and leave it, and what they find there.
#include "kvferry/cpu_tier/peers/joined_tier.hpp"

#include "kvferry/base/error.hpp"
#include "kvferry/cpu_tier/peers/tier_report.hpp"

#include "other_process.hpp"
#include "tier_path.hpp"

#include <gtest/gtest.h>

#include <csignal>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>

namespace kvferry::cpu_tier {
namespace {

class JoinedTierTest : public ::testing::Test {
 protected:
  [[nodiscard]] std::unique_ptr<JoinedTier> join(const std::string& name) const {
    return JoinedTier::join(file_.options(2), {.name = name, .name_space = 1});
  }
  [[nodiscard]] static BlockKey key(std::uint64_t number) {
    return BlockKey::make(std::as_bytes(std::span(&number, 1)), GroupId(0));
  }
  /// Stores a block in a chunk of its own.
  static SlotPlace store(JoinedTier& tier, std::uint64_t number) {
    TierDirectory& directory = tier.directory();
    const auto chunk = directory.take_chunk();
    EXPECT_TRUE(chunk);
    directory.divide(*chunk, {.num_slots = 4, .slab_class = 0});
    const SlotPlace place{*chunk, 2};
    EXPECT_TRUE(directory.begin_fill(place));
    directory.publish(place, key(number));
    return place;
  }

  const TierPath file_;
};

TEST_F(JoinedTierTest, WhatOneEngineCommitsAnotherLeases) {
  const auto a = join("a");
  const auto b = join("b");
  const SlotPlace place = store(*a, 7);
  EXPECT_EQ(b->directory().leases().lease(key(7)), place);
  b->directory().leases().end_lease(place);
}

TEST_F(JoinedTierTest, NothingIsLeftBehindTheLast) {
  auto a = join("a");
  auto b = join("b");
  static_cast<void>(store(*a, 7));
  a.reset();
  // What it left is served for as long as somebody is there.
  EXPECT_TRUE(b->directory().leases().has(key(7)));
  b.reset();
  EXPECT_FALSE(file_.exists());
}

TEST_F(JoinedTierTest, WhoHasTheOldFileOfAPathTakesNobodyThereForDead) {
  const auto a = join("a");
  const auto b = join("b");
  const SlotPlace place = store(*b, 7);
  // By hand; and somebody makes another one.
  std::filesystem::remove(file_.options(2).path);
  const auto c = join("c");
  EXPECT_EQ(a->directory().sweep().num_instances, 0U) << "on the new file nobody has their locks";
  EXPECT_TRUE(b->directory().owns(place.chunk));
  EXPECT_FALSE(c->directory().leases().has(key(7)));
}

TEST_F(JoinedTierTest, WhatWasCommittedIsServedAfterAllHaveGone) {
  const SlotPlace place = [&] {
    const auto a = JoinedTier::join(file_.kept(2), {.name = "a", .name_space = 1});
    return store(*a, 7);
  }();
  ASSERT_TRUE(file_.exists());
  const auto b = join("b");
  EXPECT_EQ(b->directory().leases().lease(key(7)), place);
  b->directory().leases().end_lease(place);
}

TEST_F(JoinedTierTest, WhatAKilledEngineCommittedIsServedAndItsChunksAreNobodys) {
  EXPECT_TRUE(WIFSIGNALED(in_a_process([&] {
    const auto a = join("a");
    static_cast<void>(store(*a, 7));
    ::kill(::getpid(), SIGKILL);
    return 0;
  })));
  const auto b = join("b");
  EXPECT_TRUE(b->directory().leases().has(key(7)));
  const TierReport report = inspect_tier(file_.path, file_.machine.root.proc);
  ASSERT_EQ(report.instances.size(), 1U);
  EXPECT_EQ(report.num_orphan_chunks, 1U);
}

TEST_F(JoinedTierTest, AnEngineThatCannotJoinLeavesNothing) {
  const std::string name(3, 'a');
  auto a = join(name);
  EXPECT_THROW(static_cast<void>(join(name)), ResourceError);
  a.reset();
  EXPECT_FALSE(file_.exists());
}

TEST_F(JoinedTierTest, ARankHasTheSameFileWhoeverOfItsEngineComesFirst) {
  const JoinedRank early(file_.options(2), "a", 0);
  // Another engine goes meanwhile, and does not take the file with it.
  join("b").reset();
  const auto a = join("a");
  const JoinedRank late(file_.options(2), "a", 1);
  EXPECT_EQ(early.tier().file().inode(), a->tier().file().inode());
  EXPECT_EQ(late.tier().file().inode(), a->tier().file().inode());
  EXPECT_EQ(late.arena_offset(), early.arena_offset() + late.tier().arena_bytes());
}

TEST_F(JoinedTierTest, WhicheverOfAnEngineGoesLastRemovesIt) {
  auto a = join("a");
  std::optional<JoinedRank> rank(std::in_place, file_.options(2), "a", 0);
  a.reset();
  EXPECT_TRUE(file_.exists());
  rank.reset();
  EXPECT_FALSE(file_.exists());
}

// Its device may still write what the scheduler had it fill.
TEST_F(JoinedTierTest, ALivingRankKeepsItsEngineFromBeingSwept) {
  std::optional<JoinedRank> rank(std::in_place, file_.options(2), "a", 1);
  EXPECT_TRUE(WIFSIGNALED(in_a_process([&] {
    const auto a = join("a");
    static_cast<void>(store(*a, 7));
    ::kill(::getpid(), SIGKILL);
    return 0;
  })));
  const auto b = join("b");
  EXPECT_EQ(b->directory().sweep().num_instances, 0U);
  EXPECT_TRUE(b->directory().leases().has(key(7)));
  rank.reset();
  const SweepReport swept = b->directory().sweep();
  EXPECT_EQ(swept.num_instances, 1U);
  EXPECT_EQ(swept.num_orphaned_chunks, 1U);
}

TEST_F(JoinedTierTest, ARankBeyondTheTiersOrASecondOneIsRefused) {
  const JoinedRank rank(file_.options(2), "a", 1);
  expect_named(
      complaint_of<ConfigError>([&] { static_cast<void>(JoinedRank(file_.options(2), "a", 2)); }),
      {"rank 2", "2 ranks"});
  expect_named(
      complaint_of<ResourceError>([&] { static_cast<void>(JoinedRank(file_.options(2), "a", 1)); }),
      {"rank 1", "of this very engine", "name this shared_path for one KvFerryConnector"});
  EXPECT_NO_THROW(static_cast<void>(JoinedRank(file_.options(2), "b", 1)));
}

TEST_F(JoinedTierTest, OneOfThoseWhoMapAnArenaClaimsIt) {
  std::optional<JoinedRank> first(std::in_place, file_.options(2), "a", 0);
  const JoinedRank other_rank(file_.options(2), "a", 1);
  const JoinedRank other_engine(file_.options(2), "b", 0);
  EXPECT_TRUE(first->claims_arena());
  EXPECT_TRUE(first->claims_arena());
  EXPECT_TRUE(other_rank.claims_arena());
  EXPECT_FALSE(other_engine.claims_arena());
  first.reset();
  EXPECT_TRUE(other_engine.claims_arena());
}

}  // namespace
}  // namespace kvferry::cpu_tier
