// SPDX-License-Identifier: Apache-2.0
#include "lookups.hpp"

#include "engine_tier.hpp"
#include "fake_engine.hpp"

#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <vector>

namespace kvferry::connector {
namespace {

/// A request of four blocks, all of which a tier of one class holds.
class LookupsTest : public ::testing::Test {
 protected:
  LookupsTest() {
    tier_->grow_to(16);
    hashes_ = std::make_shared<FakeHashes>(std::vector<std::uint64_t>{1, 2, 3, 4});
    request_ = &requests_.arrive("r", hashes_);
    EXPECT_EQ(request_->sync_keys(groups_), std::nullopt);
    tier_->commit(std::move(tier_->reserve(SlabClassId(0), request_->keys[0])).value().hand_over());
  }
  [[nodiscard]] static SchedulerOptions options() {
    SchedulerOptions options;
    options.hash_tokens = 4;
    options.classes = {{1, {1}}};
    options.max_chunks = 16;
    return options;
  }
  Lookups::Taken take(std::uint32_t count) {
    const std::vector<BlockId> table = blocks_of({20, 21, 22, 23});
    const std::array<std::span<const BlockId>, 1> tables{table};
    Lookups::Taken taken = lookups_.take(*request_, count, tables);
    if (taken.leased) {
      for (LeasedBlocks& part : *taken.leased) {
        tier_->release(std::move(part.lease));
      }
    }
    return taken;
  }

  SchedulerOptions options_ = options();
  std::unique_ptr<cpu_tier::Tier> tier_ = make_tier(options_);
  BlockGroups groups_{options_.groups, options_.hash_tokens};
  RequestTable requests_{DomainId(1)};
  std::shared_ptr<FakeHashes> hashes_;
  Request* request_ = nullptr;
  Lookups lookups_{*tier_, groups_};
};

TEST_F(LookupsTest, AnAnswerIsTakenOnce) {
  EXPECT_EQ(lookups_.find(*request_, 1, 4).end, 4U);
  const Lookups::Taken taken = take(3);
  EXPECT_TRUE(taken.was_valid);
  EXPECT_EQ(taken.first, 1U);
  EXPECT_TRUE(taken.leased.has_value());
  const Lookups::Taken again = take(3);
  EXPECT_FALSE(again.was_valid);
  EXPECT_FALSE(again.leased.has_value());
}

TEST_F(LookupsTest, AnAnswerOfAnEarlierGenerationIsNotLeased) {
  EXPECT_EQ(lookups_.find(*request_, 0, 4).end, 4U);
  requests_.preempt(*request_);
  EXPECT_FALSE(take(4).was_valid);
  EXPECT_EQ(lookups_.find(*request_, 0, 4).end, 4U);
  EXPECT_TRUE(take(4).leased.has_value());
}

TEST_F(LookupsTest, AForgottenAnswerStillSaysWhereItBegan) {
  EXPECT_EQ(lookups_.find(*request_, 1, 4).end, 4U);
  lookups_.forget_answers();
  const Lookups::Taken taken = take(3);
  EXPECT_FALSE(taken.was_valid);
  EXPECT_FALSE(taken.leased.has_value());
  EXPECT_EQ(taken.first, 1U) << "the blocks before it are not the load's";
}

TEST_F(LookupsTest, DroppedKeysMakeAnAnswerVoid) {
  EXPECT_EQ(lookups_.find(*request_, 0, 4).end, 4U);
  hashes_->truncate(2);
  EXPECT_EQ(request_->sync_keys(groups_), 2U);
  lookups_.on_keys_dropped(*request_, 2);
  EXPECT_FALSE(take(2).was_valid);
  EXPECT_EQ(lookups_.find(*request_, 0, 2).end, 2U);
}

TEST_F(LookupsTest, AnotherRequestInThePlaceHasNoAnswer) {
  EXPECT_EQ(lookups_.find(*request_, 0, 4).end, 4U);
  const std::uint32_t place = request_->place;
  EXPECT_EQ(requests_.finish("r"), TransferId());
  request_ = &requests_.arrive("s", hashes_);
  EXPECT_EQ(request_->sync_keys(groups_), std::nullopt);
  EXPECT_EQ(request_->place, place);
  EXPECT_FALSE(take(4).was_valid);
}

// The answer of the wait is the first lookup's, too.
TEST_F(LookupsTest, ARequestThatWaitsHasItsAnswer) {
  lookups_.await(*request_);
  EXPECT_EQ(tier_->snapshot().num_awaited, 4U);
  lookups_.end_await(*request_);
  EXPECT_EQ(tier_->snapshot().num_awaited, 0U);
  EXPECT_TRUE(take(4).leased.has_value());
}

}  // namespace
}  // namespace kvferry::connector
