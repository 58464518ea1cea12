// SPDX-License-Identifier: Apache-2.0
// What clients say of blocks: whose promises there are, and when they end.
#include "kvferry/cpu_tier/policy/promise_ledger.hpp"

#include "scheduler_fixture.hpp"

namespace kvferry::connector {
namespace {

using std::chrono::seconds;
using Done = std::array<std::uint64_t, kNumHintActions>;

class SchedulerHintsTest : public SchedulerTest {
 protected:
  SchedulerHintsTest() {
    tier_options_ = {cpu_tier::Eviction::kLru, cpu_tier::Admission::kAlways, 0.0F, 1.0F};
    restart(8);
    register_ranks({.num_slots = 8, .max_slots = 8});
  }
  /// A request of the session, or of none, comes with a hint, and ends.
  void say(std::string_view id, const std::vector<std::uint64_t>& keys, std::string_view session,
           const ClientHint& hint) {
    arrive(id, keys);
    engine_->on_hints(id, session, {&hint, 1});
    engine_->on_finished(id);
  }
  [[nodiscard]] std::uint64_t num_promised() const { return engine_->snapshot().tier.num_promised; }
  void pass(seconds time) {
    now_ += time;
    static_cast<void>(plan());
  }
};

TEST_F(SchedulerHintsTest, RetainBeginsWithTheEndOfItsRequestAndEndsWithItsTime) {
  const ClientHint retain{HintAction::kRetain, seconds(10)};
  arrive("r", {1, 2, 3});
  engine_->on_hints("r", "", {&retain, 1});
  pass(seconds(20));
  EXPECT_EQ(num_promised(), 0U);
  engine_->on_finished("r");
  EXPECT_EQ(num_promised(), 3U);
  pass(seconds(9));
  EXPECT_EQ(num_promised(), 3U);
  pass(seconds(1));
  EXPECT_EQ(num_promised(), 0U);
  EXPECT_EQ(view().hints_expired, 1U);
  EXPECT_EQ(view().hints, (Done{1, 0, 0, 0}));
}

TEST_F(SchedulerHintsTest, TheNextTurnOfASessionTakesThePlaceOfTheLastOne) {
  say("a", {1, 2}, "s", {HintAction::kRetain, seconds(10)});
  say("b", {1, 2, 3}, "s", {HintAction::kRetain, seconds(10)});
  EXPECT_EQ(num_promised(), 3U);
  say("c", {1, 2, 4}, "other", {HintAction::kRetain, seconds(10)});
  EXPECT_EQ(num_promised(), 4U);
  say("d", {9}, "s", {HintAction::kRelease});
  EXPECT_EQ(num_promised(), 3U) << "what the other session has promised stays so";
}

TEST_F(SchedulerHintsTest, ASessionIsNoRequestOfTheSameName) {
  say("x", {1}, "", {HintAction::kRetain, seconds(10)});
  say("y", {2}, "x", {HintAction::kRelease});
  EXPECT_EQ(num_promised(), 1U);
  EXPECT_EQ(view().hints_without_effect, 1U);
}

TEST_F(SchedulerHintsTest, PrefetchPromisesAtOnceAndRenewsWhatASessionHas) {
  const ClientHint prefetch{HintAction::kPrefetch, seconds(5)};
  arrive("r", {1, 2});
  engine_->on_hints("r", "s", {&prefetch, 1});
  EXPECT_EQ(num_promised(), 2U);
  pass(seconds(4));
  say("other", {7}, "", {HintAction::kPrefetch, seconds(5), "s"});
  pass(seconds(4));
  EXPECT_EQ(num_promised(), 2U);
  pass(seconds(1));
  EXPECT_EQ(num_promised(), 0U);
}

TEST_F(SchedulerHintsTest, DemoteEndsThePromiseOfASession) {
  say("a", {1, 2}, "s", {HintAction::kRetain, seconds(10)});
  say("b", {1, 2, 3}, "s", {HintAction::kDemote});
  EXPECT_EQ(num_promised(), 0U);
  say("c", {4}, "t", {HintAction::kRetain, seconds(10)});
  say("d", {5}, "", {HintAction::kDemote, seconds(0), "t"});
  EXPECT_EQ(num_promised(), 0U);
  EXPECT_EQ(view().hints, (Done{2, 0, 2, 0}));
}

TEST_F(SchedulerHintsTest, ResetOfTheCacheEndsEveryPromise) {
  say("a", {1, 2}, "s", {HintAction::kRetain, seconds(10)});
  engine_->reset_cache();
  EXPECT_EQ(num_promised(), 0U);
  pass(seconds(20));
  EXPECT_EQ(view().hints_expired, 0U);
}

TEST_F(SchedulerHintsTest, PromisesNameNoMoreKeysThanTheTierHasSlots) {
  say("a", {1, 2, 3, 4, 5}, "a", {HintAction::kRetain, seconds(10)});
  say("b", {11, 12, 13}, "b", {HintAction::kRetain, seconds(20)});
  EXPECT_EQ(num_promised(), 8U);
  say("c", {21}, "c", {HintAction::kRetain, seconds(5)});
  EXPECT_EQ(num_promised(), 4U) << "the one that ends next made room";
  EXPECT_EQ(view().hints_refused, 1U);
  say("d", {31, 32, 33, 34, 35, 36, 37, 38, 39}, "d", {HintAction::kRetain, seconds(5)});
  EXPECT_EQ(num_promised(), 4U);
  EXPECT_EQ(view().hints_refused, 2U);
}

TEST_F(SchedulerHintsTest, WithoutAShareEveryHintIsRefused) {
  tier_options_.max_promised_share = 0;
  restart(8);
  register_ranks({.num_slots = 8, .max_slots = 8});
  say("a", {1, 2}, "s", {HintAction::kRetain, seconds(10)});
  EXPECT_EQ(num_promised(), 0U);
  EXPECT_EQ(view().hints_refused, 1U);
}

// Nothing would limit how many of them there are.
TEST_F(SchedulerHintsTest, APromptWithoutAWholeBlockPromisesNothing) {
  say("a", {1, 2}, "s", {HintAction::kRetain, seconds(10)});
  say("b", {}, "s", {HintAction::kRetain, seconds(10)});
  EXPECT_EQ(num_promised(), 0U) << "the session's last turn counts";
  say("c", {}, "", {HintAction::kRetain, seconds(10)});
  EXPECT_EQ(view().hints_without_effect, 2U);
  pass(seconds(20));
  EXPECT_EQ(view().hints_expired, 0U);
}

TEST_F(SchedulerHintsTest, HintsOfUnknownRequestsSayNothing) {
  const ClientHint retain{HintAction::kRetain, seconds(10)};
  engine_->on_hints("nobody", "s", {&retain, 1});
  engine_->on_finished("nobody");
  EXPECT_EQ(num_promised(), 0U);
}

}  // namespace
}  // namespace kvferry::connector
