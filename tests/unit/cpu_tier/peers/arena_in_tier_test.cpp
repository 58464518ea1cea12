// SPDX-License-Identifier: Apache-2.0
// Arenas in a tier that engine instances share.
#include "kvferry/cpu_tier/peers/arena_in_tier.hpp"

#include "kvferry/base/error.hpp"
#include "kvferry/base/test_hooks.hpp"
#include "kvferry/cpu_tier/memory/arena.hpp"
#include "kvferry/cpu_tier/peers/joined_tier.hpp"
#include "kvferry/gpu/host_link.hpp"

#include "byte_sizes.hpp"
#include "tier_path.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

namespace kvferry::cpu_tier {
namespace {

constexpr std::uint64_t kChunkBytes = TierPath::kChunkBytes;
/// Of a chunk.
constexpr std::uint32_t kMaxSlots = 64;

class ArenaInTierTest : public ::testing::Test {
 protected:
#ifdef KVFERRY_TEST_HOOKS
  ~ArenaInTierTest() override { test_hooks::reset(); }
#endif

  /// How a rank makes its arena.
  struct Rank : ArenaOptions {
    std::shared_ptr<const JoinedRank> joined;
  };
  [[nodiscard]] Rank options(const std::string& instance, std::uint32_t rank = 0) const {
    return {{.pinned_piece_bytes = 2 * kChunkBytes,
             .max_registration_bytes = 4 * kChunkBytes,
             .num_threads = 2,
             .machine = file_.machine.root},
            std::make_shared<const JoinedRank>(file_.options(2), instance, rank)};
  }
  [[nodiscard]] std::unique_ptr<Arena> arena(
      const Rank& of, std::uint64_t chunk_bytes = kChunkBytes,
      std::uint32_t num_chunks = TierPath::kNumChunks) const {
    return std::make_unique<Arena>(*device_, make_tier_source(of.joined), chunk_bytes, num_chunks,
                                   of);
  }
  static void fill(const Arena& of, std::uint32_t chunk, int value) {
    std::memset(reinterpret_cast<void*>(of.chunk_address(ChunkId(chunk))), value, kChunkBytes);
  }
  /// The value of all its bytes, or -1.
  static int content(const Arena& of, std::uint32_t chunk) {
    const auto* const bytes =
        reinterpret_cast<const std::uint8_t*>(of.chunk_address(ChunkId(chunk)));
    for (std::uint64_t i = 1; i < kChunkBytes; ++i) {
      if (bytes[i] != bytes[0]) return -1;
    }
    return bytes[0];
  }

  const TierPath file_;
  const std::unique_ptr<gpu::Device> device_ = gpu::make_host_device();
};

TEST_F(ArenaInTierTest, IsOneMemoryForTheSameRankOfAllEngines) {
  auto first = arena(options("a"));
  EXPECT_EQ(first->num_ready(), TierPath::kNumChunks);
  EXPECT_EQ(first->chunks_per_piece(), 2U);
  const auto other_rank = arena(options("a", 1));
  for (std::uint32_t chunk = 0; chunk < TierPath::kNumChunks; ++chunk) {
    fill(*first, chunk, static_cast<int>(chunk + 1));
    fill(*other_rank, chunk, static_cast<int>(chunk + 101));
  }
  const auto second = arena(options("b"));
  EXPECT_EQ(second->num_ready(), TierPath::kNumChunks);
  first.reset();
  for (std::uint32_t chunk = 0; chunk < TierPath::kNumChunks; ++chunk) {
    EXPECT_EQ(content(*second, chunk), static_cast<int>(chunk + 1));
    EXPECT_EQ(content(*other_rank, chunk), static_cast<int>(chunk + 101));
    EXPECT_NE(second->chunk_device_address(ChunkId(chunk)), 0U);
  }
}

// Another model may divide the chunk otherwise, and takes its blocks over.
TEST_F(ArenaInTierTest, TagsAreTheSameForTheSameRankOfAllEnginesHoweverTheyDivideIt) {
  Rank of_a = options("a");
  Rank of_b = options("b");
  Rank of_other = options("a", 1);
  of_a.tags_per_chunk = 1;
  of_b.tags_per_chunk = kMaxSlots;
  const auto a = arena(of_a);
  const auto b = arena(of_b);
  const auto other = arena(of_other);
  EXPECT_EQ(a->tags_per_chunk(), kMaxSlots);
  for (std::uint32_t chunk = 0; chunk < TierPath::kNumChunks; ++chunk) {
    for (std::uint32_t i = 0; i < kMaxSlots; ++i) a->tag(ChunkId(chunk), i).store(chunk + i + 1);
  }
  for (std::uint32_t chunk = 0; chunk < TierPath::kNumChunks; ++chunk) {
    for (std::uint32_t i = 0; i < kMaxSlots; ++i) {
      EXPECT_EQ(b->tag(ChunkId(chunk), i).load(), chunk + i + 1);
      EXPECT_EQ(other->tag(ChunkId(chunk), i).load(), 0U);
    }
  }
}

TEST_F(ArenaInTierTest, MoreTagsThanTheTierHasSlotsAreRefused) {
  Rank of = options("a");
  of.tags_per_chunk = kMaxSlots + 1;
  EXPECT_THROW(static_cast<void>(arena(of)), ConfigError);
}

TEST_F(ArenaInTierTest, LeavesNothingBehindTheLast) {
  arena(options("a")).reset();
  EXPECT_FALSE(file_.exists());
}

TEST_F(ArenaInTierTest, GrowsPieceByPieceAndTakesNoMoreOfTheMachine) {
  Rank of = options("a");
  of.start = ArenaStart::kEmpty;
  const auto own = arena(of);
  const SharedTier& tier = of.joined->tier();
  EXPECT_EQ(tier.file().reserved_bytes(), tier.places().arenas);
  EXPECT_EQ(own->grow(1), 2U);
  EXPECT_EQ(tier.file().reserved_bytes(), tier.places().arenas + 2 * kChunkBytes);
  fill(*own, 1, 7);
  // What is there already costs a second engine nothing, and what it adds is there for the first.
  Rank other = options("b");
  other.start = ArenaStart::kEmpty;
  const auto second = arena(other);
  EXPECT_EQ(second->grow(4 * kChunkBytes), 4U);
  EXPECT_EQ(tier.file().reserved_bytes(), tier.places().arenas + 4 * kChunkBytes);
  EXPECT_EQ(content(*second, 1), 7);
  EXPECT_EQ(own->grow(4 * kChunkBytes), 4U);
  EXPECT_EQ(tier.file().reserved_bytes(), tier.places().arenas + 6 * kChunkBytes);
}

TEST_F(ArenaInTierTest, TheMachineIsAskedOnceForWhatAllMap) {
  const Rank a = options("a");
  const Rank b = options("b");
  Rank empty_a = a;
  Rank empty_b = b;
  empty_a.start = empty_b.start = ArenaStart::kEmpty;
  file_.machine.write_available(TierPath::kNumChunks * kChunkBytes / kKiB);
  auto first = arena(empty_a);
  const auto second = arena(empty_b);
  // A stranger sees that it is taken.
  EXPECT_THROW(Arena(*device_, kChunkBytes, TierPath::kNumChunks, empty_a), ResourceError);
  while (second->grow(1) > 0) {
  }
  EXPECT_EQ(second->num_ready(), TierPath::kNumChunks);
}

TEST_F(ArenaInTierTest, AShortageNamesTheTierAndWhatItLacks) {
  const Rank a = options("a");
  file_.machine.write_available(10 * kChunkBytes / kKiB);
  expect_named(complaint_of<ResourceError>([&] { static_cast<void>(arena(a)); }),
               {"the shared tier " + file_.path.string() + " still lacks 1048576", "MemAvailable"});
}

TEST_F(ArenaInTierTest, TakesLessIfItMay) {
  Rank a = options("a");
  file_.machine.write_available(10 * kChunkBytes / kKiB);
  a.shortage = Shortage::kTakeLess;
  const auto less = arena(a);
  EXPECT_EQ(less->num_chunks(), 10U);
  EXPECT_EQ(less->num_ready(), 10U);
  ASSERT_EQ(less->warnings().size(), 1U);
  expect_named(less->warnings()[0], {"takes 10 of 16 chunks", file_.path.string()});
}

TEST_F(ArenaInTierTest, WhatIsThereIsHadWhereTheMachineHasNothingLeft) {
  const Rank other_rank = options("a", 1);
  Rank a = options("a");
  const Rank b = options("b");
  a.start = ArenaStart::kEmpty;
  const auto first = arena(a);
  EXPECT_EQ(first->grow(4 * kChunkBytes), 4U);
  const auto first_of_other_rank = arena(other_rank);
  file_.machine.write_available(0);
  Rank second_options = b;
  second_options.start = ArenaStart::kEmpty;
  const auto second = arena(second_options);
  EXPECT_EQ(second->grow(4 * kChunkBytes), 4U);
  EXPECT_THROW(second->grow(4 * kChunkBytes), ResourceError);
  EXPECT_EQ(second->num_ready(), 4U);
}

TEST_F(ArenaInTierTest, WhatDoesNotFitIsAConfigErrorThatNamesBoth) {
  Rank huge = options("b");
  huge.pages = PageKind::kPool;
  expect_named(complaint_of<ConfigError>([&] { static_cast<void>(arena(huge)); }),
               {"huge", "normal", "hugetlbfs"});
  const Rank c = options("c");
  expect_named(complaint_of<ConfigError>(
                   [&] { static_cast<void>(arena(c, kChunkBytes, TierPath::kNumChunks - 1)); }),
               {"15 chunks of 65536 bytes", "16 chunks of 65536 bytes"});
  expect_named(complaint_of<ConfigError>(
                   [&] { static_cast<void>(arena(c, kChunkBytes / 2, TierPath::kNumChunks)); }),
               {"16 chunks of 32768 bytes", "16 chunks of 65536 bytes"});
}

#ifdef KVFERRY_TEST_HOOKS
TEST_F(ArenaInTierTest, AFailureTakesNothingFromOthers) {
  const auto first = arena(options("a"));
  fill(*first, 0, 7);
  for (const char* fault : {"arena.populate", "arena.register"}) {
    test_hooks::fail_nth_of(fault, 1);
    EXPECT_THROW(static_cast<void>(arena(options("b"))), Error) << fault;
    test_hooks::reset();
    EXPECT_EQ(content(*first, 0), 7) << fault;
  }
  EXPECT_EQ(content(*arena(options("b")), 0), 7);
}
#endif

}  // namespace
}  // namespace kvferry::cpu_tier
