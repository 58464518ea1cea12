// SPDX-License-Identifier: Apache-2.0
// Schedulers that leave a shared tier while a rank of theirs lives on, and clocks that differ.
#include "kvferry/base/error.hpp"
#include "kvferry/cpu_tier/peers/member_lock.hpp"
#include "kvferry/cpu_tier/peers/tier_directory.hpp"

#include "complaint.hpp"
#include "other_process.hpp"
#include "shared_tier_rig.hpp"
#include "time_name_space.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace kvferry::cpu_tier {
namespace {

using namespace std::chrono_literals;
using Time = std::chrono::steady_clock::time_point;

constexpr std::uint32_t kFewChunks = 4;
constexpr std::uint32_t kFewSlots = 8;
constexpr ChunkShape kWholeChunk{.num_slots = kFewSlots, .slab_class = 0};

class TierEndTest : public ::testing::Test {
 protected:
  static ChunkId take(TierDirectory& directory) {
    const std::optional<ChunkId> chunk = directory.take_chunk();
    EXPECT_TRUE(chunk);
    directory.divide(chunk.value(), kWholeChunk);
    return chunk.value();
  }
  /// Takes all that can be had; whether that chunk was among it.
  static bool can_take(TierDirectory& directory, ChunkId wanted) {
    while (!directory.owns(wanted) && directory.take_chunk()) {
    }
    return directory.owns(wanted);
  }
  [[nodiscard]] MemberLock rank_of(const std::string& instance, std::uint32_t rank = 0) const {
    return {LockFile(rig_.path()), lock_base_of(instance), rank + 1};
  }
  [[nodiscard]] std::unique_ptr<TierDirectory> join_with_clock(const std::string& name,
                                                               const Time& now) const {
    return rig_.join(TierDirectory::Identity{
        .name = name, .name_space = 1, .grace = 30s, .clock = [&now] { return now; }});
  }
  /// An instance that is killed while it fills slot 0 of the chunk that is returned.
  [[nodiscard]] ChunkId die_while_filling() const {
    ChunkId chunk;
    in_a_process_that_is_killed([&] {
      TierDirectory& dying = *rig_.join("dying").release();
      if (!dying.begin_fill({take(dying), 0})) ::_exit(1);
    });
    while (rig_.word({chunk, 0}).state() != SharedState::kFilling) chunk = chunk.next();
    return chunk;
  }

  const SharedTierRig rig_{{kFewChunks, kTierPageBytes, kFewSlots, 1}};
};

TEST_F(TierEndTest, WhatARankMayStillWriteGoesToNobodyWhileItLives) {
  auto a = rig_.join("a");
  const auto b = rig_.join(
      TierDirectory::Identity{.name = "b", .name_space = 1, .grace = std::chrono::hours(1)});
  std::optional<MemberLock> rank(rank_of("a"));
  const ChunkId chunk = take(*a);
  ASSERT_TRUE(a->begin_fill({chunk, 0}));
  ASSERT_TRUE(rig_.store(*a, {chunk, 1}, 7));
  a.reset();
  EXPECT_EQ(rig_.word({chunk, 0}).state(), SharedState::kFilling);
  EXPECT_EQ(b->sweep().num_instances, 0U);
  EXPECT_FALSE(can_take(*b, chunk)) << "its rank may still write there";
  const auto leased = b->leases().lease(rig_.key(7));
  ASSERT_TRUE(leased) << "what it stored is served meanwhile";
  b->leases().end_lease(*leased);

  rank.reset();
  const SweepReport swept = b->sweep();
  EXPECT_EQ(swept.num_instances, 1U);
  EXPECT_EQ(swept.num_quarantined_slots, 1U);
  ASSERT_TRUE(can_take(*b, chunk));
  EXPECT_EQ(b->free_quarantined(), 0U) << "the grace begins when the last rank is gone";
  EXPECT_FALSE(b->begin_fill({chunk, 0}));
}

TEST_F(TierEndTest, WhatARankMayStillReadIsNotEvictedWhileItLives) {
  auto a = rig_.join("a");
  const auto b = rig_.join("b");
  std::optional<MemberLock> rank(rank_of("a"));
  const SlotPlace place{take(*b), 0};
  ASSERT_TRUE(rig_.store(*b, place, 7));
  ASSERT_EQ(a->leases().lease(rig_.key(7)), place);
  a->leases().leave_lease(place);
  a.reset();
  EXPECT_FALSE(b->evict(place));
  EXPECT_FALSE(b->refill(place));
  rank.reset();
  EXPECT_EQ(b->sweep().num_ended_leases, 1U);
  EXPECT_TRUE(b->evict(place));
}

TEST_F(TierEndTest, WithoutARankTheSchedulerCleansUpBehindItself) {
  auto a = rig_.join("a");
  const auto b = rig_.join("b");
  const SlotPlace place{take(*b), 0};
  ASSERT_TRUE(rig_.store(*b, place, 7));
  const ChunkId chunk = take(*a);
  ASSERT_TRUE(a->begin_fill({chunk, 0}));
  ASSERT_TRUE(a->leases().lease(rig_.key(7)));
  a->leases().leave_lease(place);
  a.reset();
  EXPECT_EQ(rig_.word({chunk, 0}).state(), SharedState::kQuarantined);
  EXPECT_TRUE(b->evict(place));
  EXPECT_TRUE(can_take(*b, chunk));
}

TEST_F(TierEndTest, ALeaseThatIsLeftIsNotEndedByTheOneThatLeavesIt) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto a = rig_.join("a");
  EXPECT_DEATH(a->leases().leave_lease({ChunkId(0), 0}), "not leased");
}

TEST_F(TierEndTest, WhicheverOfSchedulerAndRankGoesLastTheNextSweepCleansUp) {
  for (int i = 0; i < 2; ++i) {
    auto a = rig_.join("a");
    std::optional<MemberLock> rank(rank_of("a"));
    ASSERT_TRUE(a->begin_fill({take(*a), 0}));
    if (i == 0) {
      a.reset();
      rank.reset();
    } else {
      rank.reset();
      a.reset();
    }
    static_cast<void>(rig_.join("next")->sweep());
    for (std::uint32_t record = 0; record < kMaxInstances; ++record) {
      EXPECT_EQ(rig_.instance(record).lock.load(), 0U);
    }
  }
}

TEST_F(TierEndTest, ANameWhoseRanksLiveOnCannotBeTakenAgain) {
  auto a = rig_.join("a");
  std::optional<MemberLock> rank(rank_of("a"));
  a.reset();
  expect_named(complaint_of<ResourceError>([&] { static_cast<void>(rig_.join("a")); }),
               {"ranks", "earlier engine a", "engine_id", rig_.path().string()});
  rank.reset();
  EXPECT_NO_THROW(static_cast<void>(rig_.join("a")));
}

TEST_F(TierEndTest, ASchedulersForkedChildThatLeavesTakesNothingFromIt) {
  const auto a = rig_.join("a");
  const ChunkId chunk = take(*a);
  EXPECT_EQ(in_a_process([&] {
              a->~TierDirectory();
              return 0;
            }),
            0);
  EXPECT_TRUE(a->owns(chunk));
  EXPECT_EQ(rig_.join("b")->sweep().num_instances, 0U);
}

TEST_F(TierEndTest, AChunkWithASlotThatIsFilledIsNotGivenUp) {
  const auto a = rig_.join("a");
  const auto b = rig_.join("b");
  const SlotPlace place{take(*a), 0};
  ASSERT_TRUE(a->begin_fill(place));
  EXPECT_FALSE(a->give_up(place.chunk));
  EXPECT_FALSE(can_take(*b, place.chunk));
  ASSERT_TRUE(a->slot(place).abandon());
  EXPECT_TRUE(a->give_up(place.chunk));
}

TEST_F(TierEndTest, TheGraceIsCountedByItsOwnersClockFromWhenItSawTheQuarantine) {
  Time now{};
  Time another_now{1000h};
  const ChunkId chunk = die_while_filling();
  const auto swept = join_with_clock("sweeper", another_now);
  const auto a = join_with_clock("a", now);
  ASSERT_TRUE(can_take(*a, chunk));
  EXPECT_FALSE(a->free_quarantined({chunk, 0}));
  now += 29s;
  EXPECT_EQ(a->free_quarantined(), 0U);
  another_now += 1000h;
  EXPECT_EQ(a->free_quarantined(), 0U) << "another's clock is none of its own";
  now += 1s;
  EXPECT_EQ(a->free_quarantined(), 1U);
}

TEST_F(TierEndTest, AQuarantineThatWasSeenBeforeItsChunkWasTakenIsNotWaitedForAgain) {
  Time now{};
  const auto a = join_with_clock("a", now);
  const ChunkId chunk = die_while_filling();
  ASSERT_EQ(a->sweep().num_quarantined_slots, 1U);
  a->look_around();
  now += 30s;
  a->look_around();
  ASSERT_TRUE(can_take(*a, chunk));
  EXPECT_EQ(a->free_quarantined(), 1U);
}

TEST_F(TierEndTest, ASecondQuarantineIsWaitedForLikeTheFirst) {
  Time now{};
  const auto a = join_with_clock("a", now);
  const ChunkId chunk = die_while_filling();
  static_cast<void>(a->sweep());
  a->look_around();
  now += 20s;
  in_a_process_that_is_killed([&] {
    TierDirectory& next = *rig_.join("next").release();
    if (!can_take(next, chunk) || !next.begin_fill({chunk, 1})) ::_exit(1);
  });
  ASSERT_EQ(a->sweep().num_quarantined_slots, 1U);
  now += 20s;
  ASSERT_TRUE(can_take(*a, chunk));
  EXPECT_EQ(a->free_quarantined(), 0U)
      << "a slot is there that has been in doubt for no time at all";
  now += 30s;
  EXPECT_EQ(a->free_quarantined(), 2U);
}

TEST_F(TierEndTest, WhatAStoppedInstanceSaidIsForgottenByTheClockOfWhoHeardIt) {
  Time now{};
  Time another_now{1000h};
  const auto a = join_with_clock("a", now);
  const auto b = join_with_clock("b", another_now);
  while (a->take_chunk()) {
  }
  const auto wanted = [&] { return a->num_chunks_to_give() > 0; };
  EXPECT_FALSE(wanted());
  b->tell(1, 0s);
  EXPECT_TRUE(wanted());
  now += 4s;
  EXPECT_TRUE(wanted());
  another_now += 1000h;
  EXPECT_TRUE(wanted());
  now += 1s;
  EXPECT_FALSE(wanted()) << "it is stopped, for all that is known";
  b->tell(1, 0s);
  EXPECT_TRUE(wanted());
}

// A container that was restored (CRIU), or has clocks of its own, beside another.
class TierClocksTest : public TierEndTest, public ::testing::WithParamInterface<std::int64_t> {};

TEST_P(TierClocksTest, ASweeperOfAnotherTimeNameSpaceEndsNoGrace) {
  const auto a = rig_.join(TierDirectory::Identity{.name = "a", .name_space = 1, .grace = 30s});
  const ChunkId chunk = die_while_filling();
  const auto status = in_another_time(GetParam(), [&] {
    static_cast<void>(rig_.join("sweeper"));
    return 0;
  });
  if (!status) GTEST_SKIP() << "this process may make no time name space";
  ASSERT_EQ(*status, 0);
  ASSERT_EQ(rig_.word({chunk, 0}).state(), SharedState::kQuarantined);
  ASSERT_TRUE(can_take(*a, chunk));
  EXPECT_EQ(a->free_quarantined(), 0U);
  EXPECT_FALSE(a->free_quarantined({chunk, 0}));
}

TEST_P(TierClocksTest, WhatIsSaidInAnotherTimeNameSpaceIsHeard) {
  const auto a = rig_.join("a");
  while (a->take_chunk()) {
  }
  const auto status = in_another_time(GetParam(), [&] {
    // It ends without leaving, so that its word stays.
    rig_.join("b").release()->tell(1, 0s);
    return 0;
  });
  if (!status) GTEST_SKIP() << "this process may make no time name space";
  ASSERT_EQ(*status, 0);
  EXPECT_GT(a->num_chunks_to_give(), 0U);
}

INSTANTIATE_TEST_SUITE_P(Offsets, TierClocksTest, ::testing::Values(100000, -100),
                         [](const auto& offset) { return offset.param > 0 ? "Ahead" : "Behind"; });

}  // namespace
}  // namespace kvferry::cpu_tier
