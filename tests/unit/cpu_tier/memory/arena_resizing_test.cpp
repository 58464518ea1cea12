// SPDX-License-Identifier: Apache-2.0
// Pieces of an arena that go back to the machine, and come again.
#include "kvferry/base/error.hpp"
#include "kvferry/base/test_hooks.hpp"
#include "kvferry/cpu_tier/memory/arena.hpp"
#include "kvferry/cpu_tier/memory/arena_growth.hpp"

#include "arena_replica_fixture.hpp"
#include "registration_recorder.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <latch>
#include <memory>
#include <string>
#include <sys/mman.h>
#include <thread>
#include <vector>

namespace kvferry::cpu_tier {
namespace {

/// Pieces of four chunks of a page.
constexpr std::uint32_t kOfPiece = 4;
constexpr std::uint32_t kPieces = 6;

ChunkRange piece(std::uint32_t first, std::uint32_t count = 1) {
  return {ChunkId(first * kOfPiece), ChunkId((first + count) * kOfPiece)};
}

/// Chunks of a page of an arena that are in memory.
std::uint32_t num_resident(const Arena& arena, ChunkRange chunks) {
  std::vector<unsigned char> resident(chunks.end.value() - chunks.begin.value());
  EXPECT_EQ(::mincore(reinterpret_cast<void*>(arena.chunk_address(chunks.begin)),
                      resident.size() * arena.chunk_bytes(), resident.data()),
            0);
  std::uint32_t sum = 0;
  for (const unsigned char page : resident) sum += page & 1U;
  return sum;
}

void write(const Arena& arena, std::uint32_t chunk, int value) {
  std::memset(reinterpret_cast<void*>(arena.chunk_address(ChunkId(chunk))), value, kPage);
}
int read(const Arena& arena, std::uint32_t chunk) {
  return *reinterpret_cast<const std::uint8_t*>(arena.chunk_address(ChunkId(chunk)));
}

class ArenaResizingTest : public ::testing::Test {
 protected:
  ArenaResizingTest() { machine_.write_available(1 << 20); }
#ifdef KVFERRY_TEST_HOOKS
  ~ArenaResizingTest() override { test_hooks::reset(); }
#endif

  [[nodiscard]] ArenaOptions options() const {
    return {.pinned_piece_bytes = kOfPiece * kPage,
            .resizing = ArenaResizing::kByPieces,
            .pages = PageKind::kNormal,
            .num_threads = 1,
            .machine = machine_.root};
  }
  [[nodiscard]] std::unique_ptr<Arena> make(const ArenaOptions& options) {
    return std::make_unique<Arena>(device_, kPage, kPieces * kOfPiece, options);
  }
  /// The ends of so many orders.
  static std::vector<std::string> ends(ArenaGrowth& growth, std::size_t count) {
    std::vector<std::string> all;
    await([&] {
      for (std::string& end : growth.take_ends()) all.push_back(std::move(end));
      return all.size() >= count;
    });
    EXPECT_EQ(all.size(), count);
    return all;
  }

  MadeUpMachine machine_;
  RegistrationRecorder device_;
};

TEST_F(ArenaResizingTest, WhatIsRetiredIsUnregisteredAndTheMachinesAgain) {
  const auto arena = make(options());
  ASSERT_EQ(device_.num_registered, kPieces);
  for (std::uint32_t chunk = 0; chunk < kPieces * kOfPiece; ++chunk) write(*arena, chunk, 7);
  // The recorder looks at the first byte of what is unregistered.
  for (const std::uint32_t first : {4U, 8U}) write(*arena, first, 0);
  arena->retire(piece(1, 2));
  EXPECT_EQ(device_.num_registered, kPieces - 2);
  EXPECT_EQ(num_resident(*arena, piece(1, 2)), 0U);
  EXPECT_EQ(num_resident(*arena, piece(0)), kOfPiece);
  EXPECT_EQ(num_resident(*arena, piece(3, 3)), 3 * kOfPiece);
  EXPECT_EQ(arena->num_usable(), (kPieces - 2) * kOfPiece);
  EXPECT_TRUE(arena->is_ready(ChunkId(3)));
  EXPECT_FALSE(arena->is_ready(ChunkId(4)));
  EXPECT_FALSE(arena->is_ready(ChunkId(11)));
  EXPECT_TRUE(arena->is_ready(ChunkId(12)));
  EXPECT_FALSE(arena->is_ready(ChunkId(kPieces * kOfPiece)));
  EXPECT_EQ(read(*arena, 3), 7);
  EXPECT_EQ(read(*arena, 13), 7);
  for (std::uint32_t chunk = 0; chunk < kPieces * kOfPiece; ++chunk) write(*arena, chunk, 0);
}

TEST_F(ArenaResizingTest, WhatIsRestoredIsReadyWithItsAddress) {
  const auto arena = make(options());
  const std::uintptr_t address = arena->chunk_device_address(ChunkId(6));
  arena->retire(piece(1));
  EXPECT_TRUE(arena->restore(piece(1)));
  EXPECT_EQ(arena->num_usable(), kPieces * kOfPiece);
  EXPECT_EQ(device_.num_registered, kPieces);
  EXPECT_EQ(num_resident(*arena, piece(1)), kOfPiece);
  EXPECT_EQ(arena->chunk_device_address(ChunkId(6)), address);
  EXPECT_EQ(read(*arena, 6), 0);
}

// Two pieces have their tags in one page; a piece that goes loses its own tags and no others.
TEST_F(ArenaResizingTest, APieceLosesItsTagsWithItsBytes) {
  ArenaOptions how = options();
  how.tags_per_chunk = 7;
  const auto arena = make(how);
  for (std::uint32_t chunk = 0; chunk < kPieces * kOfPiece; ++chunk) {
    for (std::uint32_t i = 0; i < 7; ++i) arena->tag(ChunkId(chunk), i).store(7 * chunk + i);
  }
  arena->retire(piece(1, 2));
  ASSERT_TRUE(arena->restore(piece(1, 2)));
  for (std::uint32_t chunk = 0; chunk < kPieces * kOfPiece; ++chunk) {
    for (std::uint32_t i = 0; i < 7; ++i) {
      const bool is_gone = chunk >= kOfPiece && chunk < 3 * kOfPiece;
      EXPECT_EQ(arena->tag(ChunkId(chunk), i).load(), is_gone ? 0 : 7 * chunk + i) << chunk;
    }
  }
}

TEST_F(ArenaResizingTest, WhatIsSoAlreadyStaysSo) {
  const auto arena = make(options());
  arena->retire(piece(2));
  arena->retire(piece(1, 3));
  EXPECT_EQ(arena->num_usable(), (kPieces - 3) * kOfPiece);
  EXPECT_TRUE(arena->restore(piece(0, kPieces)));
  EXPECT_TRUE(arena->restore(piece(0, kPieces)));
  EXPECT_EQ(device_.num_registered, kPieces);
}

TEST_F(ArenaResizingTest, TheMemoryOfTheStartAloneIsClaimedAndTouched) {
  ArenaOptions how = options();
  how.start_chunks = 2 * kOfPiece - 1;
  // KiB: for the start, and not for a piece more.
  machine_.write_available(2 * kOfPiece * 4);
  const auto arena = make(how);
  EXPECT_EQ(arena->num_chunks(), kPieces * kOfPiece);
  EXPECT_EQ(arena->num_first(), 2 * kOfPiece);
  EXPECT_EQ(arena->num_ready(), 2 * kOfPiece);
  EXPECT_EQ(num_resident(*arena, piece(2, 4)), 0U);
  EXPECT_TRUE(arena->restore(piece(4)));
  EXPECT_EQ(arena->num_usable(), 3 * kOfPiece);
  EXPECT_EQ(num_resident(*arena, piece(4)), kOfPiece);
  EXPECT_EQ(num_resident(*arena, piece(5)), 0U);
}

TEST_F(ArenaResizingTest, NothingIsRestoredThatTheMachineDoesNotHave) {
  const auto arena = make(options());
  arena->retire(piece(0, 2));
  machine_.write_available(kOfPiece * 4 - 1);
  EXPECT_THROW(static_cast<void>(arena->restore(piece(0))), ResourceError);
  EXPECT_EQ(num_resident(*arena, piece(0)), 0U);
  machine_.write_available(kOfPiece * 4);
  EXPECT_TRUE(arena->restore(piece(0)));
  // Nor what another engine was granted and has yet to touch.
  const MemoryClaim other(4096, PageKind::kNormal, {}, machine_.root);
  EXPECT_THROW(static_cast<void>(arena->restore(piece(1))), ResourceError);
}

TEST_F(ArenaResizingTest, MemoryThatStaysCannotBeResized) {
  EXPECT_TRUE(make(options())->can_resize());
  ArenaOptions fixed = options();
  fixed.resizing = ArenaResizing::kFixed;
  fixed.start_chunks = 1;
  const auto arena = make(fixed);
  EXPECT_FALSE(arena->can_resize());
  EXPECT_EQ(arena->num_ready(), kPieces * kOfPiece);
  EXPECT_EQ(device_.num_registered, 1U);
}

TEST_F(ArenaResizingTest, TheThreadDoesWhatItIsToldInOrder) {
  ArenaOptions how = options();
  how.start = ArenaStart::kEmpty;
  const auto arena = make(how);
  ASSERT_GT(arena->grow(1), 0U);
  ArenaGrowth growth(*arena);
  growth.go_gently();
  growth.order({ArenaChange::kRetire, piece(0)});
  growth.order({ArenaChange::kRestore, piece(0)});
  growth.order({ArenaChange::kRetire, piece(0)});
  growth.order({ArenaChange::kRetire, {ChunkId(0), ChunkId(0)}});
  EXPECT_EQ(ends(growth, 4), std::vector<std::string>(4));
  EXPECT_EQ(num_resident(*arena, piece(0)), 0U);
  await([&] { return growth.ended(); });
  EXPECT_EQ(arena->num_ready(), kPieces * kOfPiece);
  EXPECT_EQ(arena->num_usable(), (kPieces - 1) * kOfPiece);
  growth.order({ArenaChange::kRestore, piece(0)});
  EXPECT_EQ(ends(growth, 1), std::vector<std::string>(1));
}

TEST_F(ArenaResizingTest, ALimitOfWhatBecomesReadyDelaysNoRetirement) {
  ArenaOptions how = options();
  how.start = ArenaStart::kEmpty;
  const auto arena = make(how);
  ArenaGrowth growth(*arena, {.pinning_bandwidth_limit = 1});
  await([&] { return arena->num_ready() > 0; });
  growth.order({ArenaChange::kRetire, piece(0)});
  EXPECT_EQ(ends(growth, 1), std::vector<std::string>(1));
  growth.order({ArenaChange::kRestore, piece(0)});
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_TRUE(growth.take_ends().empty());
  growth.close();
  EXPECT_TRUE(growth.take_ends().empty());
  EXPECT_EQ(arena->num_usable(), 0U);
}

TEST_F(ArenaReplicaTest, MembersGiveTheirOneMemoryBackAndHaveItAgain) {
  Member first = options(0);
  Member second = options(1);
  first.resizing = second.resizing = ArenaResizing::kByPieces;
  const auto a = arena(first);
  const auto b = arena(second);
  const std::uint32_t of_piece = a->chunks_per_piece();
  ArenaGrowth growth_a(*a);
  ArenaGrowth growth_b(*b);
  await([&] { return growth_a.ended() && growth_b.ended(); });
  ASSERT_EQ(b->num_ready(), kNumChunks);
  for (std::uint32_t chunk = 0; chunk < kNumChunks; ++chunk) fill(*a, chunk, 9);
  // Pieces of both homes.
  const ChunkRange pieces{ChunkId(0), ChunkId(2 * of_piece)};
  for (ArenaGrowth* growth : {&growth_a, &growth_b}) growth->order({ArenaChange::kRetire, pieces});
  await([&] { return a->num_usable() + b->num_usable() == 2 * kNumChunks - 4 * of_piece; });
  for (const auto& arena : {a.get(), b.get()}) {
    EXPECT_TRUE(holds(*arena, 0, 0)) << "what was given back reads as nothing";
    EXPECT_TRUE(holds(*arena, of_piece, 0));
    EXPECT_TRUE(holds(*arena, 2 * of_piece, 9));
  }
  for (ArenaGrowth* growth : {&growth_b, &growth_a}) {
    growth->order({ArenaChange::kRestore, pieces});
  }
  await([&] { return a->num_usable() == kNumChunks && b->num_usable() == kNumChunks; });
  fill(*b, 0, 5);
  EXPECT_TRUE(holds(*a, 0, 5));
  EXPECT_TRUE(holds(*b, 2 * of_piece, 9));
}

#ifdef KVFERRY_TEST_HOOKS
// The home of a piece fails to restore it, and tries again, after another member has restored it.
TEST_F(ArenaReplicaTest, ARestorationThatFailsTakesNothingFromOtherMembers) {
  for (const char* step : {"arena.populate", "arena.register"}) {
    for (const int nth : {1, 2}) {
      Member first = options(0);
      Member second = options(1);
      first.resizing = second.resizing = ArenaResizing::kByPieces;
      const auto a = arena(first);
      const auto b = arena(second);
      const ChunkRange pieces{ChunkId(0), ChunkId(2 * a->chunks_per_piece())};
      {
        ArenaGrowth growth_a(*a);
        ArenaGrowth growth_b(*b);
        await([&] { return growth_a.ended() && growth_b.ended(); });
      }
      a->retire(pieces);
      b->retire(pieces);
      ASSERT_TRUE(a->restore(pieces));
      for (std::uint32_t chunk = 0; chunk < pieces.end.value(); ++chunk) fill(*a, chunk, 7);
      test_hooks::fail_nth_of(step, nth);
      EXPECT_THROW(static_cast<void>(b->restore(pieces)), Error) << step;
      test_hooks::reset();
      ASSERT_TRUE(b->restore(pieces));
      for (std::uint32_t chunk = 0; chunk < pieces.end.value(); ++chunk) {
        EXPECT_TRUE(holds(*b, chunk, 7)) << step << ": the device of `a` has the old pages";
      }
    }
  }
}

TEST_F(ArenaResizingTest, WhatCannotBeRestoredIsRolledBackAndCanBeTriedAgain) {
  for (const char* step : {"arena.populate", "arena.register"}) {
    const auto arena = make(options());
    arena->retire(piece(1, 3));
    test_hooks::fail_nth_of(step, 2);
    EXPECT_THROW(static_cast<void>(arena->restore(piece(1, 3))), Error) << step;
    EXPECT_EQ(arena->num_usable(), (kPieces - 3) * kOfPiece) << step;
    EXPECT_EQ(num_resident(*arena, piece(1, 3)), 0U) << step;
    EXPECT_TRUE(arena->restore(piece(1, 3)));
    EXPECT_EQ(device_.num_registered, kPieces);
    test_hooks::reset();
  }
}

TEST_F(ArenaResizingTest, AnOrderThatFailsSaysWhyAndTheNextOneIsObeyed) {
  const auto arena = make(options());
  ArenaGrowth growth(*arena);
  growth.order({ArenaChange::kRetire, piece(0, 2)});
  EXPECT_EQ(ends(growth, 1), std::vector<std::string>(1));
  test_hooks::fail_nth_of("arena.register", 1);
  growth.order({ArenaChange::kRestore, piece(0)});
  growth.order({ArenaChange::kRestore, piece(1)});
  const std::vector<std::string> said = ends(growth, 2);
  EXPECT_NE(said.at(0).find("on request of a test"), std::string::npos) << said.at(0);
  EXPECT_EQ(said.at(1), "");
  EXPECT_EQ(arena->num_usable(), (kPieces - 1) * kOfPiece);
}

TEST_F(ArenaResizingTest, AnOrderThatComesInAStepOfGrowthIsNextAfterIt) {
  std::latch in_step(1);
  std::latch go_on(1);
  std::atomic<int> num_steps{0};
  test_hooks::on_pause("arena.growth", [&] {
    if (++num_steps != 1) return;
    in_step.count_down();
    go_on.wait();
  });
  std::atomic<std::uint32_t> ready_then{0};
  ArenaOptions how = options();
  how.start = ArenaStart::kEmpty;
  const auto arena = make(how);
  ASSERT_EQ(arena->grow(1), kOfPiece);
  test_hooks::on_pause("arena.order", [&] { ready_then = arena->num_ready(); });
  ArenaGrowth growth(*arena);
  growth.go_gently();
  in_step.wait();
  growth.order({ArenaChange::kRetire, piece(0)});
  go_on.count_down();
  EXPECT_EQ(ends(growth, 1), std::vector<std::string>(1));
  EXPECT_EQ(ready_then.load(), 2 * kOfPiece);
  await([&] { return growth.ended(); });
}

// A close waits for the piece that is being given back or made ready, and does no other.
TEST_F(ArenaResizingTest, ClosesAtEachPointOfAnOrder) {
  struct Case {
    const char* point;
    ArenaChange change;
    bool ends;  ///< A retirement is done once it has begun.
  };
  for (const Case& one : {Case{"arena.order", ArenaChange::kRetire, true},
                          Case{"arena.before_unregistering", ArenaChange::kRetire, true},
                          Case{"arena.before_release", ArenaChange::kRetire, true},
                          Case{"arena.order", ArenaChange::kRestore, false},
                          Case{"arena.before_registering_again", ArenaChange::kRestore, true}}) {
    const auto arena = make(options());
    arena->retire(piece(0));
    std::latch reached(1);
    std::latch closing(1);
    test_hooks::on_pause(one.point, [&] {
      reached.count_down();
      closing.wait();
    });
    test_hooks::on_pause("arena.close", [&] {
      if (!closing.try_wait()) closing.count_down();
    });
    ArenaGrowth growth(*arena);
    const bool is_retirement = one.change == ArenaChange::kRetire;
    growth.order({one.change, is_retirement ? piece(1) : piece(0)});
    growth.order({ArenaChange::kRetire, piece(3)});
    reached.wait();
    growth.close();
    EXPECT_EQ(growth.take_ends().size(), one.ends ? 1U : 0U) << one.point;
    const std::uint32_t pieces = kPieces - 1 + (one.ends ? (is_retirement ? -1 : 1) : 0);
    EXPECT_EQ(arena->num_usable(), pieces * kOfPiece) << one.point;
    EXPECT_EQ(device_.num_registered, pieces) << one.point;
    EXPECT_EQ(num_resident(*arena, piece(0, kPieces)), pieces * kOfPiece) << one.point;
    test_hooks::reset();
  }
}
#endif

}  // namespace
}  // namespace kvferry::cpu_tier
