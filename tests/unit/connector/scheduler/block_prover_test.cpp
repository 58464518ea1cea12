// SPDX-License-Identifier: Apache-2.0
#include "block_prover.hpp"

#include "fake_engine.hpp"
#include "scheduler_fixture.hpp"

#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <string>
#include <vector>

namespace kvferry::connector {
namespace {

constexpr std::uint32_t kNumBlocks = 32;

/// One group, of full attention unless a test says otherwise. Requests compute what they are told,
/// plan by plan.
class BlockProverTest : public ::testing::Test {
 protected:
  explicit BlockProverTest(const KvGroup& group = {},
                           OtherLoads other_loads = OtherLoads::kPossible)
      : kinds_{group}, prover_(requests_, groups_, kNumBlocks, LaterTurns::kStored, other_loads) {}

  Request& arrive(const std::string& id, const std::vector<std::uint64_t>& numbers) {
    Request& request = requests_.arrive(id, std::make_shared<FakeHashes>(numbers));
    EXPECT_EQ(request.sync_keys(groups_), std::nullopt);
    return request;
  }
  /// A plan in which the request computes tokens [computed, computed + scheduled).
  void compute(Request& request, TableUpdate update, const std::vector<std::uint32_t>& numbers,
               std::uint32_t num_computed, std::uint32_t num_scheduled) {
    const std::vector<BlockId> blocks = blocks_of(numbers);
    const std::array<std::span<const BlockId>, 1> by_group{blocks};
    request.update_tables(update, by_group);
    prover_.cover(request, update, by_group, {num_computed, num_scheduled, 0}, last_);
    last_ = last_.next();
  }
  /// An earlier request has computed the first two blocks of a prompt, in these places.
  void prove_two(const std::vector<std::uint32_t>& numbers) {
    Request& first = arrive("first", {1, 2});
    compute(first, TableUpdate::kReplace, numbers, 0, 8);
    EXPECT_EQ(prover_.prove(first), 2U);
  }
  [[nodiscard]] bool holds(std::uint32_t block, std::uint64_t number) const {
    return prover_.holds(BlockId(block), key_of(number));
  }

  const std::vector<KvGroup> kinds_;
  BlockGroups groups_{kinds_, kBlockTokens};
  RequestTable requests_{DomainId(1)};
  BlockProver prover_;
  PlanSeq last_;
};

/// No other connector loads.
class LoneProverTest : public BlockProverTest {
 protected:
  LoneProverTest() : BlockProverTest({}, OtherLoads::kNone) {}
};

/// A window of one block.
class WindowProverTest : public BlockProverTest {
 protected:
  WindowProverTest() : BlockProverTest({TokenReach::window(kBlockTokens)}) {}
};

TEST_F(BlockProverTest, ProvesWhatIsComputedWhole) {
  Request& request = arrive("r", {1, 2, 3});
  compute(request, TableUpdate::kReplace, {10, 11, 12}, 0, 10);
  EXPECT_EQ(prover_.prove(request), 2U);
  EXPECT_TRUE(holds(10, 1));
  EXPECT_TRUE(holds(11, 2));
  EXPECT_FALSE(holds(12, 3)) << "half of it is to come";
  compute(request, TableUpdate::kAppend, {}, 10, 2);
  EXPECT_EQ(prover_.prove(request), 3U);
  EXPECT_TRUE(holds(12, 3));
}

TEST_F(BlockProverTest, WhatIsFoundCountsIfItIsProven) {
  prove_two({10, 11});
  Request& second = arrive("second", {1, 2, 3});
  compute(second, TableUpdate::kReplace, {10, 11, 12}, 8, 4);
  EXPECT_EQ(prover_.prove(second), 3U);
  Request& third = arrive("third", {1, 7, 8});
  compute(third, TableUpdate::kReplace, {10, 20, 21}, 8, 4);
  EXPECT_EQ(prover_.prove(third), 1U) << "no plan has computed block 20";
  EXPECT_FALSE(holds(21, 8));
}

TEST_F(BlockProverTest, ABlockThatGetsAnotherWriterIsNotProven) {
  Request& request = arrive("r", {1});
  compute(request, TableUpdate::kReplace, {10}, 0, 4);
  EXPECT_EQ(prover_.prove(request), 1U);
  prover_.begin_write(GroupId(0), BlockId(10), Generation());
  EXPECT_FALSE(holds(10, 1));
}

TEST_F(BlockProverTest, AGapInTheTokensProvesNothingAfterIt) {
  Request& request = arrive("r", {1, 2, 3, 4});
  compute(request, TableUpdate::kReplace, {10, 11, 12, 13}, 0, 4);
  compute(request, TableUpdate::kAppend, {}, 8, 8);
  EXPECT_EQ(prover_.prove(request), 0U);
  EXPECT_FALSE(holds(12, 3));
}

// The engine gives a block its key when it schedules it, which may not be computed then.
TEST_F(BlockProverTest, ALoadOfAnotherConnectorCountsAfterItsWitness) {
  Request& request = arrive("r", {1, 2, 3});
  prover_.note_local(request, 0, last_);
  compute(request, TableUpdate::kReplace, {10, 11, 12}, 8, 4);
  EXPECT_EQ(prover_.prove(request), 0U);
  EXPECT_EQ(prover_.in_doubt().size(), 1U);
  EXPECT_TRUE(prover_.needs_witness());
  prover_.set_witness(TransferId(5));
  EXPECT_FALSE(prover_.needs_witness());
  prover_.hear(std::array{TransferId(4)});
  EXPECT_EQ(prover_.prove(request), 0U);
  prover_.hear(std::array{TransferId(5)});
  EXPECT_EQ(prover_.prove(request), 3U);
  prover_.settle_doubt([](const Request&) { return true; });
  EXPECT_TRUE(prover_.in_doubt().empty());
}

// Block 12 was proven under this very key before the engine copied the head of another block into
// it. The engine tells a lookup only the whole blocks of a hit.
TEST_F(BlockProverTest, AHitThatEndsWithinABlockIsNoLoadOfAnotherConnector) {
  prove_two({10, 12});
  Request& request = arrive("r", {1, 2, 3});
  prover_.note_local(request, 4, last_);
  compute(request, TableUpdate::kReplace, {10, 12, 13}, 6, 6);
  EXPECT_FALSE(prover_.needs_witness());
  EXPECT_EQ(prover_.prove(request), 1U);
  EXPECT_FALSE(holds(12, 2));
  EXPECT_FALSE(holds(13, 3));
}

TEST_F(LoneProverTest, WhatTheEngineHasBeyondALookupItHasFound) {
  prove_two({10, 11});
  Request& second = arrive("second", {1, 2, 3});
  prover_.note_local(second, 4, last_);
  compute(second, TableUpdate::kReplace, {10, 11, 12}, 8, 4);
  EXPECT_FALSE(prover_.needs_witness());
  EXPECT_EQ(prover_.prove(second), 3U);
  Request& third = arrive("third", {1, 7, 8});
  prover_.note_local(third, 4, last_);
  compute(third, TableUpdate::kReplace, {10, 20, 21}, 8, 4);
  EXPECT_EQ(prover_.prove(third), 1U) << "no plan has computed block 20";
  EXPECT_FALSE(holds(21, 8));
}

TEST_F(BlockProverTest, OurLoadProvesItsOwnBlocksWhenItHasEndedWell) {
  Request& request = arrive("r", {1, 2, 3});
  request.tables.front() = blocks_of({10, 11, 12});
  prover_.begin_load(request, 1, 3);
  EXPECT_FALSE(holds(11, 2));
  prover_.end_load(request);
  EXPECT_FALSE(holds(10, 1)) << "it was local";
  EXPECT_TRUE(holds(11, 2));
  EXPECT_TRUE(holds(12, 3));
}

TEST_F(BlockProverTest, AStepBackIntoWhatWasLoadedGoesOnFromWhatIsRight) {
  Request& request = arrive("r", {1, 2, 3});
  request.tables.front() = blocks_of({10, 11});
  prover_.begin_load(request, 0, 2);
  prover_.end_load(request);
  compute(request, TableUpdate::kReplace, {10, 11, 12}, 7, 1);
  EXPECT_EQ(prover_.prove(request), 2U);
  compute(request, TableUpdate::kAppend, {}, 8, 4);
  EXPECT_EQ(prover_.prove(request), 3U);
  EXPECT_TRUE(holds(11, 2));
  EXPECT_TRUE(holds(12, 3));
}

TEST_F(BlockProverTest, AStepBackOfSeveralBlocksGoesOnFromWhatIsRight) {
  Request& first = arrive("first", {1, 2, 3});
  compute(first, TableUpdate::kReplace, {10, 11, 12}, 0, 12);
  EXPECT_EQ(prover_.prove(first), 3U);
  Request& second = arrive("second", {1, 2, 3, 4});
  compute(second, TableUpdate::kReplace, {10, 11, 12, 13}, 6, 10);
  EXPECT_EQ(prover_.prove(second), 4U);
}

TEST_F(BlockProverTest, AStepBackIntoABlockOfWhichNothingIsKnownProvesNothing) {
  Request& request = arrive("r", {1, 2});
  compute(request, TableUpdate::kReplace, {10, 11}, 3, 5);
  EXPECT_EQ(prover_.prove(request), 0U);
  EXPECT_FALSE(holds(10, 1));
}

TEST_F(BlockProverTest, PreemptionForgetsWhatWasScheduledAndNotComputed) {
  Request& request = arrive("r", {1, 2});
  compute(request, TableUpdate::kReplace, {10, 11}, 0, 4);
  EXPECT_EQ(prover_.prove(request), 1U);
  Request& other = arrive("other", {1, 2});
  compute(other, TableUpdate::kReplace, {20, 21}, 0, 8);
  EXPECT_EQ(prover_.prove(other), 2U);
  prover_.on_preempted(request);
  EXPECT_TRUE(holds(10, 1));
  EXPECT_FALSE(holds(21, 2)) << "its key is one that the request did not come to compute";
}

TEST_F(BlockProverTest, WhatIsTakenBackIsProvenByAnotherComputationOnly) {
  Request& request = arrive("r", {1, 2, 3});
  compute(request, TableUpdate::kReplace, {10, 11, 12}, 0, 12);
  EXPECT_EQ(prover_.prove(request), 3U);
  EXPECT_EQ(prover_.find_first(request, {BlockId(11)}), 1U);
  EXPECT_EQ(prover_.find_first(request, {BlockId(20)}), std::nullopt);
  const std::vector<BlockId> lost = prover_.take_back(request, 1);
  EXPECT_EQ(lost, blocks_of({11, 12}));
  for (const BlockId block : lost) prover_.forget(block);
  EXPECT_EQ(prover_.prove(request), 1U);
  compute(request, TableUpdate::kAppend, {}, 4, 8);
  EXPECT_EQ(prover_.prove(request), 3U);
}

TEST_F(BlockProverTest, AnotherRequestsRecomputationVoidsWhatStandsOnIt) {
  Request& writer = arrive("writer", {1, 2});
  compute(writer, TableUpdate::kReplace, {10, 11}, 0, 8);
  EXPECT_EQ(prover_.prove(writer), 2U);
  Request& reader = arrive("reader", {1, 2, 3});
  compute(reader, TableUpdate::kReplace, {10, 11, 12}, 8, 2);
  compute(writer, TableUpdate::kAppend, {}, 4, 4);
  compute(reader, TableUpdate::kAppend, {}, 10, 2);
  EXPECT_EQ(prover_.prove(writer), 2U);
  EXPECT_EQ(prover_.prove(reader), 2U) << "half of its block stands on what was there before";
}

TEST_F(BlockProverTest, AStateIsProvenWithTheTokensBeforeItUnlessItWasOverwritten) {
  const std::vector<KvGroup> kinds{KvGroup{}, {TokenReach::state(0)}};
  const BlockGroups groups(kinds, kBlockTokens);
  RequestTable requests(DomainId(1), 2);
  BlockProver prover(requests, groups, kNumBlocks, LaterTurns::kStored);
  Request& request =
      requests.arrive("r", std::make_shared<FakeHashes>(std::vector<std::uint64_t>{1, 2}));
  EXPECT_EQ(request.sync_keys(groups), std::nullopt);
  const std::vector<BlockId> attention = blocks_of({10, 11});
  const std::vector<BlockId> states = blocks_of({20, 21});
  const std::array<std::span<const BlockId>, 2> tables{attention, states};
  request.update_tables(TableUpdate::kReplace, tables);
  prover.cover(request, TableUpdate::kReplace, tables, {0, 8, 0}, PlanSeq());
  prover.note_state(request, {GroupId(1), 0, BlockId(20)});
  prover.note_state(request, {GroupId(1), 1, BlockId(21)});
  EXPECT_TRUE(prover.take_proven_states(request).empty()) << "nothing is proven before them";
  EXPECT_EQ(prover.prove(request), 2U);
  prover.begin_write(GroupId(1), BlockId(20), Generation());
  const std::vector<LeftState> proven = prover.take_proven_states(request);
  ASSERT_EQ(proven.size(), 1U);
  EXPECT_EQ(proven[0].block, BlockId(21));
  EXPECT_TRUE(prover.holds(BlockId(21), key_of(2, GroupId(1))));
  EXPECT_TRUE(prover.take_proven_states(request).empty());
}

TEST_F(WindowProverTest, ABlockThatSlidOutAndCameBackHoldsItsLaterPlace) {
  Request& request = arrive("r", {1, 2, 3});
  // Block 10 has slid out of the window when the request gets it again, and nothing was proven yet.
  compute(request, TableUpdate::kReplace, {10}, 0, kBlockTokens);
  compute(request, TableUpdate::kAppend, {11}, kBlockTokens, kBlockTokens);
  compute(request, TableUpdate::kAppend, {10}, 2 * kBlockTokens, kBlockTokens);
  EXPECT_EQ(prover_.prove(request), 3U);
  EXPECT_FALSE(holds(10, 1));
  EXPECT_TRUE(holds(11, 2));
  EXPECT_TRUE(holds(10, 3));
}

// The last plan's tokens do not see block 10 at their end, but they begin in its window, so the
// request still has it.
TEST_F(WindowProverTest, ABlockThatIsNotProvenIsNotPassedInTheStepInWhichItSlidesOut) {
  Request& request = arrive("r", {1, 2, 3, 4});
  compute(request, TableUpdate::kReplace, {10, 11, 12, 13}, 0, 2);
  prover_.forget(BlockId(10));  // The engine says that it is wrong.
  compute(request, TableUpdate::kAppend, {}, 2, 10);
  EXPECT_EQ(prover_.prove(request), 0U);
  EXPECT_FALSE(holds(10, 1));
  compute(request, TableUpdate::kAppend, {}, 12, 4);
  EXPECT_EQ(prover_.prove(request), 4U);
  EXPECT_FALSE(holds(10, 1));
  EXPECT_TRUE(holds(11, 2));
}

TEST_F(BlockProverTest, AResetKeepsTheProofsOfWhatThePoolHasStill) {
  Request& request = arrive("r", {1, 2});
  compute(request, TableUpdate::kReplace, {10, 11}, 0, 8);
  EXPECT_EQ(prover_.prove(request), 2U);
  FakePool pool(kNumBlocks);
  pool.cache(11, 2);
  prover_.forget_all(&pool);
  EXPECT_FALSE(holds(10, 1));
  EXPECT_TRUE(holds(11, 2));
  EXPECT_EQ(prover_.num_proven(request), 0U);
}

}  // namespace
}  // namespace kvferry::connector
