// SPDX-License-Identifier: Apache-2.0
#include "request_table.hpp"

#include "fake_engine.hpp"

#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <vector>

namespace kvferry::connector {
namespace {

constexpr DomainId kDomain{3};

class RequestTableTest : public ::testing::Test {
 protected:
  Request& arrive(const char* id) {
    return table_.arrive(id, std::make_shared<FakeHashes>(std::vector<std::uint64_t>{1, 2}));
  }

  RequestTable table_{kDomain};
};

TEST_F(RequestTableTest, FindsWhatArrivedUntilItIsFinished) {
  EXPECT_EQ(table_.find("r"), nullptr);
  Request& request = arrive("r");
  EXPECT_EQ(table_.find("r"), &request);
  EXPECT_EQ(table_.num_living(), 1U);
  EXPECT_EQ(table_.finish("r"), TransferId());
  EXPECT_EQ(table_.find("r"), nullptr);
  EXPECT_EQ(table_.num_living(), 0U);
}

TEST_F(RequestTableTest, EveryIncarnationOfAnIdHasAnOwnerOfItsOwn) {
  const Owner first = arrive("r").owner(kDomain);
  EXPECT_EQ(table_.finish("r"), TransferId());
  const Owner second = arrive("r").owner(kDomain);
  EXPECT_NE(first.request, second.request);
  EXPECT_NE(first.generation, second.generation);
}

// dynamo#6681: abort and stop reach the connector in one step.
TEST_F(RequestTableTest, FinishIsIdempotentAndAnswersForTheLoadOnce) {
  table_.begin_load(arrive("r"), TransferId(5));
  EXPECT_EQ(table_.finish("r"), TransferId(5));
  EXPECT_EQ(table_.finish("r"), TransferId());
  EXPECT_EQ(table_.finish("r"), TransferId());
  EXPECT_EQ(table_.finish("never seen"), TransferId());
  EXPECT_EQ(table_.num_tombstones(), 1U);
  EXPECT_EQ(table_.num_living(), 0U);
}

TEST_F(RequestTableTest, ATombstoneIsNotLivingAndGoesWithItsLoad) {
  Request& request = arrive("r");
  const Owner owner = request.owner(kDomain);
  table_.begin_load(request, TransferId(5));
  EXPECT_EQ(table_.finish("r"), TransferId(5));
  EXPECT_EQ(table_.find("r"), nullptr);
  int num_visited = 0;
  table_.for_each([&num_visited](Request&) { ++num_visited; });
  EXPECT_EQ(num_visited, 0);
  EXPECT_EQ(table_.end_load(owner, TransferId(5)), LoadEnd::kAborted);
  EXPECT_EQ(table_.num_tombstones(), 0U);
  EXPECT_EQ(table_.end_load(owner, TransferId(5)), LoadEnd::kStale);
}

TEST_F(RequestTableTest, TheEndOfALoadStartsANewGenerationAndIsTakenOnce) {
  Request& request = arrive("r");
  const Owner owner = request.owner(kDomain);
  table_.begin_load(request, TransferId(5));
  EXPECT_EQ(table_.end_load(owner, TransferId(5)), LoadEnd::kWaitedFor);
  EXPECT_EQ(request.state, RequestState::kIdle);
  EXPECT_NE(request.generation, owner.generation);
  EXPECT_EQ(table_.end_load(owner, TransferId(5)), LoadEnd::kStale);
}

// vllm#51637: the old completion of a reused id must not match.
TEST_F(RequestTableTest, TheEndOfAnEarlierIncarnationsLoadIsStale) {
  Request& old = arrive("r");
  const Owner old_owner = old.owner(kDomain);
  table_.begin_load(old, TransferId(5));
  EXPECT_EQ(table_.finish("r"), TransferId(5));
  Request& fresh = arrive("r");
  EXPECT_EQ(table_.num_tombstones(), 0U) << "the engine has one record per id";
  table_.begin_load(fresh, TransferId(6));
  EXPECT_EQ(table_.end_load(old_owner, TransferId(5)), LoadEnd::kStale);
  EXPECT_EQ(fresh.state, RequestState::kLoading);
  EXPECT_EQ(table_.end_load(fresh.owner(kDomain), TransferId(6)), LoadEnd::kWaitedFor);
}

// vllm#51637, within one incarnation: a load, a roll-back, a second load.
TEST_F(RequestTableTest, TheEndOfAnEarlierGenerationsLoadIsStale) {
  Request& request = arrive("r");
  const Owner first = request.owner(kDomain);
  table_.begin_load(request, TransferId(5));
  EXPECT_EQ(table_.end_load(first, TransferId(5)), LoadEnd::kWaitedFor);
  table_.preempt(request);
  table_.begin_load(request, TransferId(6));
  EXPECT_EQ(table_.end_load(first, TransferId(5)), LoadEnd::kStale);
  // Neither of the two alone is proof.
  EXPECT_EQ(table_.end_load(first, TransferId(6)), LoadEnd::kStale);
  EXPECT_EQ(table_.end_load(request.owner(kDomain), TransferId(5)), LoadEnd::kStale);
  EXPECT_EQ(table_.end_load(request.owner(DomainId(4)), TransferId(6)), LoadEnd::kStale);
  EXPECT_EQ(request.state, RequestState::kLoading);
  EXPECT_EQ(table_.end_load(request.owner(kDomain), TransferId(6)), LoadEnd::kWaitedFor);
}

TEST_F(RequestTableTest, PreemptionFreesTheBlocksOfTheSameRequest) {
  Request& request = arrive("r");
  const Owner before = request.owner(kDomain);
  request.tables.front() = blocks_of({1, 2});
  table_.preempt(request);
  EXPECT_EQ(request.id, before.request);
  EXPECT_NE(request.generation, before.generation);
  EXPECT_FALSE(request.has_blocks());
}

TEST_F(RequestTableTest, TheLivingHaveDifferentPlacesAndTheFinishedLeaveTheirs) {
  Request& first = arrive("a");
  Request& second = arrive("b");
  table_.begin_load(first, TransferId(5));
  EXPECT_NE(first.place, second.place);
  const std::uint32_t of_first = first.place;
  const Owner owner = first.owner(kDomain);
  EXPECT_EQ(table_.finish("a"), TransferId(5));
  EXPECT_NE(arrive("c").place, of_first) << "a tombstone keeps its place";
  EXPECT_EQ(table_.end_load(owner, TransferId(5)), LoadEnd::kAborted);
  EXPECT_EQ(arrive("d").place, of_first);
}

TEST_F(RequestTableTest, AStepAddsToTheTablesOrReplacesThem) {
  Request& request = arrive("r");
  const std::vector<BlockId> first = blocks_of({1, 2});
  const std::vector<BlockId> more = blocks_of({3});
  const std::array<std::span<const BlockId>, 1> by_group{first};
  const std::array<std::span<const BlockId>, 1> added{more};
  request.update_tables(TableUpdate::kReplace, by_group);
  request.update_tables(TableUpdate::kAppend, {});
  EXPECT_EQ(request.tables.front(), first);
  request.update_tables(TableUpdate::kAppend, added);
  EXPECT_EQ(request.tables.front(), blocks_of({1, 2, 3}));
  request.update_tables(TableUpdate::kReplace, added);
  EXPECT_EQ(request.tables.front(), more);
  request.update_tables(TableUpdate::kReplace, {});
  EXPECT_FALSE(request.has_blocks());
}

using RequestTableDeathTest = RequestTableTest;

TEST_F(RequestTableDeathTest, ASecondLoadOfALoadingRequestIsABrokenInvariant) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  Request& request = arrive("r");
  table_.begin_load(request, TransferId(5));
  EXPECT_DEATH(table_.begin_load(request, TransferId(6)), "starts a load while one is under way");
}

class SyncKeysTest : public ::testing::Test {
 protected:
  SyncKeysTest() {
    request_.hashes = hashes_;
    request_.keys.resize(2);
    EXPECT_EQ(request_.sync_keys(groups_), std::nullopt);
  }

  void expect_keys(const std::vector<std::uint64_t>& numbers) {
    ASSERT_EQ(request_.num_hashes, numbers.size());
    for (std::uint16_t group = 0; group < 2; ++group) {
      ASSERT_EQ(request_.keys[group].size(), numbers.size());
      for (std::size_t i = 0; i < numbers.size(); ++i) {
        EXPECT_EQ(request_.keys[group][i], key_of(numbers[i], GroupId(group)));
      }
    }
  }

  const BlockGroups groups_{std::vector<KvGroup>(2), 4};
  std::shared_ptr<FakeHashes> hashes_ =
      std::make_shared<FakeHashes>(std::vector<std::uint64_t>{1, 2, 3, 4});
  Request request_;
};

/// Blocks of two and of three hashes.
TEST(SyncKeys, ABlocksKeyIsItsLastHash) {
  const BlockGroups groups(
      std::vector<KvGroup>{{TokenReach(), SlabClassId(0), 2}, {TokenReach(), SlabClassId(0), 3}},
      4);
  const auto hashes = std::make_shared<FakeHashes>(std::vector<std::uint64_t>{1, 2, 3, 4, 5, 6, 7});
  Request request;
  request.hashes = hashes;
  request.keys.resize(2);
  EXPECT_EQ(request.sync_keys(groups), std::nullopt);
  EXPECT_EQ(request.num_hashes, 7U);
  const auto numbers_of = [&request](std::uint32_t group) {
    std::vector<std::uint64_t> numbers;
    for (const cpu_tier::BlockKey& key : request.keys[group]) {
      for (std::uint64_t number = 1; number < 20; ++number) {
        if (key == key_of(number, GroupId(group))) numbers.push_back(number);
      }
    }
    return numbers;
  };
  EXPECT_EQ(numbers_of(0), (std::vector<std::uint64_t>{2, 4, 6}));
  EXPECT_EQ(numbers_of(1), (std::vector<std::uint64_t>{3, 6}));
  // No key ends with the hash that goes.
  hashes->truncate(6);
  EXPECT_EQ(request.sync_keys(groups), std::nullopt);
  hashes->truncate(5);
  EXPECT_EQ(request.sync_keys(groups), 4U);
  EXPECT_EQ(numbers_of(0), (std::vector<std::uint64_t>{2, 4}));
  EXPECT_EQ(numbers_of(1), (std::vector<std::uint64_t>{3}));
  hashes->assign({1, 2, 13, 14, 15, 16});
  EXPECT_EQ(request.sync_keys(groups), 2U);
  EXPECT_EQ(numbers_of(0), (std::vector<std::uint64_t>{2, 14, 16}));
  EXPECT_EQ(numbers_of(1), (std::vector<std::uint64_t>{13, 16}));
}

/// More hashes than are read at a time.
TEST(SyncKeys, ALongPromptHasTheKeysOfAllItsHashes) {
  const BlockGroups groups(
      std::vector<KvGroup>{{TokenReach(), SlabClassId(0), 2}, {TokenReach(), SlabClassId(0), 3}},
      4);
  std::vector<std::uint64_t> numbers(1000);
  std::iota(numbers.begin(), numbers.end(), 1);
  Request request;
  request.hashes = std::make_shared<FakeHashes>(numbers);
  request.keys.resize(2);
  EXPECT_EQ(request.sync_keys(groups), std::nullopt);
  for (std::uint32_t group = 0; group < 2; ++group) {
    const std::size_t length = group + 2;
    const std::vector<cpu_tier::BlockKey>& keys = request.keys[group];
    ASSERT_EQ(keys.size(), numbers.size() / length);
    for (std::size_t i = 0; i < keys.size(); ++i) {
      EXPECT_EQ(keys[i], key_of((i + 1) * length, GroupId(group)));
    }
  }
}

/// Blocks of two hashes, of four and of one: the last group's keys are read, and the others copied.
TEST(SyncKeys, GroupsOfLongerBlocksHaveTheKeysOfTheirLastHashes) {
  const std::vector<KvGroup> kinds{{TokenReach(), SlabClassId(0), 2},
                                   {TokenReach(), SlabClassId(0), 4},
                                   {TokenReach(), SlabClassId(0), 1}};
  const BlockGroups groups(kinds, 4);
  const auto hashes = std::make_shared<FakeHashes>(std::vector<std::uint64_t>{1, 2, 3, 4, 5});
  Request request;
  request.hashes = hashes;
  request.keys.resize(3);
  const auto expect_keys = [&](GroupId group, const std::vector<std::uint64_t>& numbers) {
    std::vector<cpu_tier::BlockKey> expected;
    for (const std::uint64_t number : numbers) expected.push_back(key_of(number, group));
    EXPECT_EQ(request.keys[group.value()], expected) << "group " << group.value();
  };
  EXPECT_EQ(request.sync_keys(groups), std::nullopt);
  expect_keys(GroupId(0), {2, 4});
  expect_keys(GroupId(1), {4});
  expect_keys(GroupId(2), {1, 2, 3, 4, 5});
  hashes->assign({1, 2, 13, 14, 15, 16, 17, 18});
  EXPECT_EQ(request.sync_keys(groups), 2U);
  expect_keys(GroupId(0), {2, 14, 16, 18});
  expect_keys(GroupId(1), {14, 18});
  expect_keys(GroupId(2), {1, 2, 13, 14, 15, 16, 17, 18});
}

TEST_F(SyncKeysTest, TakesOverWhatTheEngineAdded) {
  hashes_->append(5);
  EXPECT_EQ(request_.sync_keys(groups_), std::nullopt);
  expect_keys({1, 2, 3, 4, 5});
}

TEST_F(SyncKeysTest, DropsWhatAStreamingSessionTruncated) {
  hashes_->assign({1, 2});
  EXPECT_EQ(request_.sync_keys(groups_), 2U);
  expect_keys({1, 2});
}

TEST_F(SyncKeysTest, NoticesAReplacementOfTheSameLength) {
  hashes_->assign({1, 2, 7, 8});
  EXPECT_EQ(request_.sync_keys(groups_), 2U);
  expect_keys({1, 2, 7, 8});
}

TEST_F(SyncKeysTest, NoticesAReplacementByALongerList) {
  hashes_->assign({1, 6, 7, 8, 9, 10});
  EXPECT_EQ(request_.sync_keys(groups_), 1U);
  expect_keys({1, 6, 7, 8, 9, 10});
}

TEST_F(SyncKeysTest, SurvivesALossOfAllHashes) {
  hashes_->assign({});
  EXPECT_EQ(request_.sync_keys(groups_), 0U);
  expect_keys({});
}

}  // namespace
}  // namespace kvferry::connector
