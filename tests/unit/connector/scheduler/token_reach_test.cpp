// SPDX-License-Identifier: Apache-2.0
#include "kvferry/connector/scheduler/token_reach.hpp"

#include "kvferry/base/error.hpp"

#include <gtest/gtest.h>

namespace kvferry::connector {
namespace {

TEST(TokenReach, AllSeesFromTheFirstTokenOn) {
  EXPECT_TRUE(TokenReach().is_all());
  EXPECT_EQ(TokenReach().first_seen(0), 0U);
  EXPECT_EQ(TokenReach().first_seen(1000), 0U);
}

// The examples of vLLM's own get_num_skipped_tokens().
TEST(TokenReach, AWindowHasTheNextTokenInIt) {
  const TokenReach window = TokenReach::window(4);
  EXPECT_FALSE(window.is_all());
  EXPECT_EQ(window.first_seen(0), 0U);
  EXPECT_EQ(window.first_seen(3), 0U);
  EXPECT_EQ(window.first_seen(4), 1U);
  EXPECT_EQ(window.first_seen(7), 4U);
  EXPECT_EQ(TokenReach::window(1).first_seen(7), 7U);
}

TEST(TokenReach, AChunkBeginsAtItsMultiple) {
  const TokenReach chunk = TokenReach::chunk(8);
  EXPECT_FALSE(chunk.is_all());
  EXPECT_EQ(chunk.first_seen(13), 8U);
  EXPECT_EQ(chunk.first_seen(8), 8U);
  EXPECT_EQ(chunk.first_seen(7), 0U);
}

TEST(TokenReach, AStateIsWhatTheLastTokenLeft) {
  const TokenReach state = TokenReach::state(0);
  EXPECT_FALSE(state.is_all());
  EXPECT_TRUE(state.is_state());
  EXPECT_EQ(state.first_seen(0), 0U);
  EXPECT_EQ(state.first_seen(1), 0U);
  EXPECT_EQ(state.first_seen(16), 15U);
  EXPECT_EQ(state.first_seen(17), 16U);
  EXPECT_FALSE(TokenReach::window(2).is_state());
}

TEST(TokenReach, AStateWithDraftsSettlesBehindTheStep) {
  EXPECT_TRUE(TokenReach::state(0).settles_in_step());
  EXPECT_FALSE(TokenReach::state(2).settles_in_step());
  EXPECT_TRUE(TokenReach::window(2).settles_in_step());
}

TEST(TokenReach, StatesOfEachBlockAreToldByTheTable) {
  const TokenReach states = TokenReach::states();
  EXPECT_TRUE(states.is_state());
  EXPECT_FALSE(states.is_told());
  EXPECT_TRUE(TokenReach::state(0).is_told());
  EXPECT_TRUE(states.settles_in_step());
  EXPECT_EQ(states.first_seen(17), 16U);
  EXPECT_FALSE(TokenReach::window(2).is_told());
}

TEST(TokenReach, HasANameEach) {
  EXPECT_EQ(TokenReach::named("all", 0), TokenReach());
  EXPECT_EQ(TokenReach::named("window", 4), TokenReach::window(4));
  EXPECT_EQ(TokenReach::named("chunk", 4), TokenReach::chunk(4));
  EXPECT_EQ(TokenReach::named("state", 0), TokenReach::state(0));
  EXPECT_EQ(TokenReach::named("state", 4), TokenReach::state(4));
  EXPECT_EQ(TokenReach::named("states", 0), TokenReach::states());
  EXPECT_NE(TokenReach::window(4), TokenReach::chunk(4));
}

TEST(TokenReach, NonsenseIsRefused) {
  EXPECT_THROW(static_cast<void>(TokenReach::window(0)), ConfigError);
  EXPECT_THROW(static_cast<void>(TokenReach::chunk(0)), ConfigError);
  EXPECT_THROW(static_cast<void>(TokenReach::named("all", 4)), ConfigError);
  EXPECT_THROW(static_cast<void>(TokenReach::named("states", 4)), ConfigError);
  EXPECT_THROW(static_cast<void>(TokenReach::named("ring", 4)), ConfigError);
}

TEST(TokenReach, AChunkBeginsWithABlock) {
  TokenReach::chunk(32).check_block(16);
  TokenReach::window(40).check_block(16);
  EXPECT_THROW(TokenReach::chunk(40).check_block(16), ConfigError);
}

}  // namespace
}  // namespace kvferry::connector
