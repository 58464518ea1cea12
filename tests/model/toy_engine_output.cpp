// SPDX-License-Identifier: Apache-2.0
#include "kvferry/connector/step_report.hpp"

#include "toy_engine.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <span>
#include <thread>
#include <utility>

/// What comes back from a step, and the end.
namespace kvferry::connector {

ToyRequest* ToyEngine::find(const std::string& id) {
  const auto found = std::find_if(requests_.begin(), requests_.end(),
                                  [&id](const ToyRequest& request) { return request.id == id; });
  return found == requests_.end() ? nullptr : &*found;
}

ToyRequest* ToyEngine::find(std::uint64_t uid) {
  const auto found = std::find_if(requests_.begin(), requests_.end(),
                                  [uid](const ToyRequest& request) { return request.uid == uid; });
  return found == requests_.end() ? nullptr : &*found;
}

void ToyEngine::forget(ToyRequest& request) {
  std::erase(running_, &request);
  std::erase(waiting_, &request);
  preempted_.erase(request.id);
  requests_.remove_if([&request](const ToyRequest& other) { return &other == &request; });
}

void ToyEngine::finish(ToyRequest& request) {
  pool_.release(request.table);
  forget(request);
}

void ToyEngine::take_samples(const std::vector<Scheduled>& scheduled) {
  for (const Scheduled& work : scheduled) {
    ToyRequest* request = find(work.uid);
    if (!work.samples || request == nullptr) continue;
    --request->num_placeholders;
    request->know(request->num_known + 1);
    if (request->state == ToyState::kRunning) {
      cache_blocks(*request,
                   std::min(request->num_computed - request->num_placeholders, request->num_known));
    }
    if (request->num_known >= request->num_last) {
      scheduler_->on_finished(request->id);
      if (one_in(4)) scheduler_->on_finished(request->id);
      finish(*request);
    }
  }
}

std::vector<std::string> ToyEngine::tally(const Output& output) {
  for (const RankOutput& rank : output.ranks) {
    for (const std::string& id : rank.loads.failed) tallies_[id].failed = true;
    for (const std::string& id : rank.loads.ended) ++tallies_[id].num_reports;
  }
  std::vector<std::string> ended;
  for (const auto& [id, tally] : tallies_) {
    EXPECT_LE(tally.num_reports, 2U) << id << " was reported more often than there are ranks";
    if (tally.num_reports == 2) ended.push_back(id);
  }
  return ended;
}

void ToyEngine::check_loaded(ToyRequest& request) {
  const std::uint32_t num_tokens = request.load_end * kBlockTokens;
  request.kv = request.pure_kv(num_tokens, request.load_epoch);
  request.num_computed = num_tokens;
  totals_.loaded_blocks += request.load_end - request.load_first;
  for (std::uint32_t at = 0; at < num_tokens; ++at) {
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      const std::uint32_t block = request.table[at / kBlockTokens];
      EXPECT_TRUE(ranks_[rank]->holds(block, at % kBlockTokens, request.kv[at]))
          << "rank " << rank << " loaded something else for token " << at << " of " << request.id
          << " into block " << block << " (blocks " << request.load_first << " to "
          << request.load_end << ")";
    }
  }
}

void ToyEngine::finish_load(const std::string& id, bool failed) {
  ToyRequest* request = find(id);
  // vllm#43226, vllm#46240: the engine asserts exactly this.
  ASSERT_NE(request, nullptr) << "a load of " << id << " was reported, which is gone";
  ASSERT_TRUE(request->state == ToyState::kLoading || request->state == ToyState::kZombie)
      << "a load of " << id << " was reported, which does not wait for one";
  if (request->state == ToyState::kZombie) return finish(*request);
  if (!failed) {
    check_loaded(*request);
    request->state = ToyState::kReady;
  } else {
    ++totals_.failed_loads;
    if (!recompute_failed_) {
      scheduler_->on_finished(request->id);
      return finish(*request);
    }
    if (request->load_first == 0) {
      pool_.release(request->table);
      request->restart();
    } else {
      // It keeps its blocks and computes into those that were to be loaded.
      request->num_computed = request->load_first * kBlockTokens;
      request->kv = request->pure_kv(request->num_computed, request->load_epoch);
      request->state = ToyState::kReady;
    }
  }
  waiting_.push_front(request);
}

void ToyEngine::process(const Output& output) {
  take_samples(output.scheduled);
  std::vector<std::span<const std::byte>> reports;
  for (const RankOutput& rank : output.ranks) {
    if (rank.report.empty()) continue;
    reports.push_back(std::as_bytes(std::span(rank.report)));
    oracle_.take_report(decode_report(reports.back()));
  }
  const std::vector<std::string> ended = tally(output);
  const std::vector<std::string> stale = scheduler_->fold(reports);

  // What the engine is told is exactly what ended on all ranks, less what nobody waits for.
  std::map<std::string, PlanOracle::EndedLoad> expected;
  for (const PlanOracle::EndedLoad& load : oracle_.take_ended_loads()) {
    EXPECT_TRUE(expected.emplace(load.engine_id, load).second);
  }
  EXPECT_EQ(ended.size(), expected.size());
  for (const std::string& id : ended) {
    const auto load = expected.find(id);
    if (load == expected.end()) {
      ADD_FAILURE() << id << " was reported but has not ended on both ranks";
      continue;
    }
    const bool failed = tallies_.at(id).failed;
    EXPECT_EQ(failed, load->second.failed) << id;
    tallies_.erase(id);
    const auto orphan = orphans_.find(load->second.uid);
    const bool is_stale = std::find(stale.begin(), stale.end(), id) != stale.end();
    EXPECT_EQ(is_stale, orphan != orphans_.end()) << id;
    if (orphan != orphans_.end()) {
      pool_.release(orphan->second);
      orphans_.erase(orphan);
    }
    if (!is_stale) finish_load(id, failed);
  }
  const SchedulerSnapshot now = scheduler_->snapshot();
  EXPECT_TRUE(now.tier.conserved());
  EXPECT_EQ(now.num_tombstones,
            static_cast<std::uint64_t>(std::count_if(
                requests_.begin(), requests_.end(),
                [](const ToyRequest& request) { return request.state == ToyState::kZombie; })));
}

void ToyEngine::step() {
  ++totals_.steps;
  if (requests_.size() < 8 && one_in(2)) arrive();
  if (!requests_.empty() && one_in(10)) {
    abort(*std::next(requests_.begin(), below(static_cast<std::uint32_t>(requests_.size()))));
  }
  if (one_in(10)) scheduler_->on_finished("never seen");
  if (one_in(120)) reset();
  // Otherwise a step takes no time beside a copy, and nothing is ever stored before it is evicted.
  if (one_in(2)) std::this_thread::sleep_for(std::chrono::microseconds(below(400)));

  std::vector<Scheduled> scheduled;
  std::uint32_t budget = one_in(10) ? 0 : chunk_;
  schedule_running(scheduled, budget);
  schedule_waiting(scheduled, budget);
  std::string plan;
  static_cast<void>(build(scheduled, plan));
  Output output;
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    output.ranks.push_back(execute(rank, scheduled, plan));
  }
  output.scheduled = std::move(scheduled);
  outputs_.push_back(std::move(output));
  while (outputs_.size() > lag_) {
    process(outputs_.front());
    outputs_.pop_front();
  }
}

void ToyEngine::drain() {
  while (!requests_.empty()) {
    ToyRequest* living = nullptr;
    for (ToyRequest& request : requests_) {
      if (request.state != ToyState::kZombie) living = &request;
    }
    if (living == nullptr) break;
    abort(*living);
  }
  const auto start = std::chrono::steady_clock::now();
  const auto quiet = [this] {
    const SchedulerSnapshot now = scheduler_->snapshot();
    return requests_.empty() && orphans_.empty() && outputs_.empty() && oracle_.idle() &&
           now.num_backlog == 0 && now.num_stores_in_flight == 0 && now.num_loads_in_flight == 0;
  };
  while (!quiet()) {
    ASSERT_LT(std::chrono::steady_clock::now() - start, std::chrono::minutes(1))
        << "does not come to rest: " << scheduler_->snapshot().num_backlog << " in the backlog, "
        << scheduler_->snapshot().num_stores_in_flight << " stores, "
        << scheduler_->snapshot().num_loads_in_flight << " loads";
    std::string plan;
    static_cast<void>(build({}, plan));
    Output output;
    for (std::uint32_t rank = 0; rank < 2; ++rank) output.ranks.push_back(execute(rank, {}, plan));
    outputs_.push_back(std::move(output));
    while (!outputs_.empty()) {
      process(outputs_.front());
      outputs_.pop_front();
    }
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  const SchedulerSnapshot now = scheduler_->snapshot();
  EXPECT_TRUE(now.tier.conserved());
  EXPECT_EQ(now.tier.num_writable, 0U);
  EXPECT_EQ(now.tier.num_aborted, 0U);
  EXPECT_EQ(now.tier.num_leased, 0U);
  EXPECT_EQ(now.tier.num_dying, 0U);
  EXPECT_EQ(now.tier.num_quarantined, 0U);
  EXPECT_EQ(now.num_requests, 0U);
  EXPECT_EQ(now.num_tombstones, 0U);
  EXPECT_EQ(pool_.num_free(), num_blocks_) << "G1, G2: nothing holds a block";
  for (auto& rank : ranks_) {
    rank->engine().close();
    EXPECT_TRUE(rank->engine().collect().ended.empty());
    EXPECT_TRUE(rank->engine().take_report().empty());
  }
}

ToyTotals ToyEngine::totals() const {
  ToyTotals totals = totals_;
  const SchedulerSnapshot now = scheduler_->snapshot();
  totals.early_blocks = oracle_.num_early_blocks;
  totals.stored = now.stored;
  totals.skipped_ring = now.skipped_ring;
  totals.skipped_exhausted = now.skipped_exhausted;
  totals.skipped_reallocated = now.skipped_reallocated;
  totals.failed_stores = now.failed_stores;
  totals.evicted = now.tier.num_evicted_total;
  return totals;
}

}  // namespace kvferry::connector
