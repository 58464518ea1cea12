// SPDX-License-Identifier: Apache-2.0
// Which members a replica group takes, and what they are granted together.
#include "kvferry/base/error.hpp"
#include "kvferry/cpu_tier/memory/arena.hpp"
#include "kvferry/cpu_tier/memory/shared_file.hpp"

#include "arena_replica_fixture.hpp"
#include "complaint.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

namespace kvferry::cpu_tier {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;

TEST_F(ArenaReplicaTest, TheMachineIsAskedForTheMemoryOnce) {
  machine_.write_available(kNumChunks * kChunkBytes / 1024);
  const auto first = arena(options(0));
  EXPECT_NO_THROW(static_cast<void>(arena(options(1))));
  Member stranger = options(0);
  stranger.replicas = {};
  EXPECT_THROW(static_cast<void>(arena(stranger)), ResourceError);
}

TEST_F(ArenaReplicaTest, WhatTheFirstMemberWasGrantedHoldsForAll) {
  machine_.write_available(20 * kChunkBytes / 1024);
  Member first_options = options(0);
  first_options.shortage = Shortage::kTakeLess;
  const auto first = arena(first_options);
  EXPECT_EQ(first->num_chunks(), 20U);
  EXPECT_EQ(arena(options(1))->num_chunks(), 20U);
}

TEST_F(ArenaReplicaTest, ItsMembersHaveTheSameTags) {
  Member first_options = options(0);
  Member second_options = options(1);
  first_options.tags_per_chunk = second_options.tags_per_chunk = 3;
  const auto first = arena(first_options);
  const auto second = arena(second_options);
  while (first->num_ready() < kNumChunks) {
    std::jthread other([&] { second->grow(1); });
    first->grow(1);
  }
  for (std::uint32_t chunk = 0; chunk < kNumChunks; ++chunk) {
    first->tag(ChunkId(chunk), chunk % 3).store(chunk + 1);
    EXPECT_EQ(second->tag(ChunkId(chunk), chunk % 3).load(), chunk + 1);
    EXPECT_EQ(second->tag(ChunkId(chunk), (chunk + 1) % 3).load(), 0U);
  }
}

TEST_F(ArenaReplicaTest, AMemberWithOtherTagsIsRefused) {
  const auto first = arena(options(0));
  Member other = options(1);
  other.tags_per_chunk = 1;
  expect_named(complaint_of<TopologyError>([&] { static_cast<void>(arena(other)); }),
               {"has tags per chunk 1, its first member 0"});
}

TEST_F(ArenaReplicaTest, ASmallOneHasAPieceForEachMember) {
  Member large = options(0, 3);
  large.pinned_piece_bytes = std::uint64_t{64} << 20U;
  const auto first = arena(large);
  EXPECT_EQ(first->chunks_per_piece(), kNumChunks / 3);
}

TEST_F(ArenaReplicaTest, NothingIsLeftWhenAllHaveJoinedAndTheClaimIsWithdrawn) {
  const auto first = arena(options(0));
  const auto second = arena(options(1));
  EXPECT_FALSE(fs::is_empty(machine_.root.claims));
  first->withdraw_claim();
  EXPECT_TRUE(fs::is_empty(machine_.root.claims));
}

TEST_F(ArenaReplicaTest, AFirstMemberThatNeverComesEndsTheWaitWithAName) {
  Member of = options(1);
  of.replicas.patience = milliseconds(30);
  expect_named(complaint_of<TimeoutError>([&] { static_cast<void>(arena(of)); }),
               {"member 1 of 2 found no memory of the first one", "kvferry-replicas-",
                "share_replicated_kv: false"});
}

TEST_F(ArenaReplicaTest, MembersOfAnotherGeometryAreRefusedAndBothAreNamed) {
  const auto first = arena(options(0));
  expect_named(complaint_of<TopologyError>([&] { static_cast<void>(arena(options(1), 31)); }),
               {"chunks 31", "first member 30"});
  expect_named(complaint_of<TopologyError>([&] {
                 static_cast<void>(Arena(*device_, make_group_source(options(1).replicas), kPage,
                                         kNumChunks, options(1)));
               }),
               {"bytes per chunk 4096", "first member 8192"});
  expect_named(complaint_of<TopologyError>([&] { static_cast<void>(arena(options(1, 3))); }),
               {"group size 3", "first member 2"});
  Member pieces = options(1);
  pieces.pinned_piece_bytes *= 2;
  expect_named(complaint_of<TopologyError>([&] { static_cast<void>(arena(pieces)); }),
               {"bytes per piece 65536", "first member 32768"});
  patch(8, 99);
  expect_named(complaint_of<TopologyError>([&] { static_cast<void>(arena(options(1))); }),
               {"ABI version 2", "first member 99"});
}

TEST_F(ArenaReplicaTest, TwoUnderOneNumberAreRefused) {
  const auto first = arena(options(0));
  EXPECT_THROW(static_cast<void>(arena(options(0))), TopologyError);
  const auto second = arena(options(1));
  expect_named(complaint_of<TopologyError>([&] { static_cast<void>(arena(options(1))); }),
               {"has joined already", "engine_id"});
}

// Ranks of several containers: the process number is another process's there, or nobody's.
TEST_F(ArenaReplicaTest, MemoryOfAProcessThatCannotBeSeenIsRefusedWithTheRemedy) {
  const auto first = arena(options(0));
  const int stranger = SharedFile::make_unnamed(kPage, PageKind::kNormal).descriptor();
  const std::vector<std::string> parts{"member 0 of 2", "shareProcessNamespace",
                                       "share_replicated_kv: false"};
  patch(60, 999'999'999);
  expect_named(complaint_of<ConfigError>([&] { static_cast<void>(arena(options(1))); }), parts);
  const SharedFile another = SharedFile::make_unnamed(kPage, PageKind::kNormal);
  EXPECT_EQ(another.descriptor(), stranger);
  patch(60, ::getpid());
  patch(64, another.descriptor());
  expect_named(complaint_of<ConfigError>([&] { static_cast<void>(arena(options(1))); }),
               {"is another process's file", parts[1]});
}

}  // namespace
}  // namespace kvferry::cpu_tier
