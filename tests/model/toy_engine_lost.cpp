// SPDX-License-Identifier: Apache-2.0
#include "rank_patience.hpp"
#include "toy_engine.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>

/// A rank that is lost and found.
namespace kvferry::connector {
namespace {

// Of the time-out of 360 s, its default, a step counts a sixteenth at most.
constexpr std::chrono::seconds kLongStep{20};
constexpr int kStepsPastTimeout = 20;

}  // namespace

bool ToyEngine::idle_step() {
  ++totals_.steps;
  now_ += std::chrono::milliseconds(1);
  const std::optional<std::string> plan = build({});
  if (plan) {
    Output output;
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      output.ranks.push_back(execute(rank, {}, *plan));
    }
    outputs_.push_back(std::move(output));
  }
  now_ += long_step_;
  process_outputs(0);
  return plan.has_value();
}

void ToyEngine::lose_a_rank() {
  const std::uint32_t lost = below(2);
  // A dead one executes nothing, and with it the engine computes nothing; a mute one goes on.
  const bool dead = one_in(2);
  (dead ? rank_states_[lost].dead : rank_states_[lost].mute) = true;
  for (std::uint32_t i = 5 + below(40); i > 0 && !::testing::Test::HasFailure(); --i) {
    if (!dead) {
      step();
      continue;
    }
    events();
    ASSERT_TRUE(idle_step());
  }
  settle_without(lost);
  may_time_out_ = true;
  for (int i = 0; i < kStepsPastTimeout; ++i) {
    long_step_ = kLongStep;
    if (!idle_step()) break;
  }
  long_step_ = {};
  if (oracle_.owes(lost)) {
    expect_given_up(lost);
  } else {
    EXPECT_TRUE(idle_step()) << "nothing is owed: " << timeout_;
  }
  recover(lost);
  may_time_out_ = false;
}

void ToyEngine::settle_without(std::uint32_t lost) {
  for (RankState& state : rank_states_) state.silent_until = 0;
  const auto start = std::chrono::steady_clock::now();
  // As many plans as a rank has at least, behind the last transfer.
  for (std::uint64_t num_quiet = 0; num_quiet <= RankPatience::kOutputs;) {
    ASSERT_LT(std::chrono::steady_clock::now() - start, std::chrono::minutes(1))
        << "the other rank does not come to rest";
    const std::uint64_t before = oracle_.num_transfers();
    ASSERT_TRUE(idle_step());
    const bool quiet = oracle_.num_transfers() == before && !oracle_.owes(1 - lost);
    num_quiet = quiet ? num_quiet + 1 : 0;
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

void ToyEngine::expect_given_up(std::uint32_t lost) {
  ++totals_.lost_ranks;
  for (int i = 0; i < 5; ++i) {
    ASSERT_FALSE(idle_step()) << "rank " << lost << " is not given up";
    const std::string expected = "rank " + std::to_string(lost) + " of 2 has not ended ";
    EXPECT_EQ(timeout_.substr(0, expected.size()), expected) << timeout_;
    const SchedulerSnapshot now = scheduler_->snapshot();
    EXPECT_TRUE(now.tier.conserved());
    EXPECT_GE(now.tier.num_quarantined, oracle_.num_slots_written_by(lost));
    EXPECT_LE(now.tier.num_quarantined, oracle_.num_slots_owed_by(lost));
    EXPECT_EQ(now.tier.num_writable + now.tier.num_aborted, 0U) << "the other rank is done";
    if (i == 0) totals_.quarantined += now.tier.num_quarantined;
    events();  // The engine is still there for everything but plans.
  }
}

void ToyEngine::recover(std::uint32_t lost) {
  RankState& state = rank_states_[lost];
  state.dead = state.mute = false;
  for (RankState& any : rank_states_) any.silent_until = 0;
  for (; !state.missed.empty(); state.missed.pop_front()) {
    Output late;
    late.ranks.push_back(execute(lost, {}, state.missed.front()));
    process(late);
  }
  const auto start = std::chrono::steady_clock::now();
  for (int num_plans = 0; num_plans < 3;) {
    ASSERT_LT(std::chrono::steady_clock::now() - start, std::chrono::minutes(1))
        << "does not recover: " << timeout_;
    if (idle_step()) {
      ++num_plans;
      continue;
    }
    Output late;
    late.ranks.push_back(collect(lost));
    process(late);
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

}  // namespace kvferry::connector
