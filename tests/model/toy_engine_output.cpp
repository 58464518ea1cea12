// SPDX-License-Identifier: Apache-2.0
#include "kvferry/connector/wire/step_report.hpp"

#include "expect_rank_recording.hpp"
#include "toy_engine.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <span>
#include <thread>
#include <utility>
#include <vector>

/// What comes back from a step, and the end.
namespace kvferry::connector {
namespace {

std::vector<std::string> sorted(std::vector<std::string> ids) {
  std::sort(ids.begin(), ids.end());
  return ids;
}

}  // namespace

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
  note_wanted(request);
  std::erase(running_, &request);
  std::erase(waiting_, &request);
  preempted_.erase(request.id);
  requests_.remove_if([&request](const ToyRequest& other) { return &other == &request; });
}

void ToyEngine::finish(ToyRequest& request) {
  release(request.tables);
  forget(request);
}

void ToyEngine::take_samples(const std::vector<Scheduled>& scheduled) {
  for (const Scheduled& work : scheduled) {
    ToyRequest* request = find(work.uid);
    if (!work.samples || request == nullptr) continue;
    if (work.num_restarts != request->num_restarts) {
      ++totals_.dropped_samples;
      continue;
    }
    --request->num_placeholders;
    request->know(request->num_known + 1);
    if (request->state == ToyState::kRunning) {
      cache_blocks(*request,
                   std::min(request->num_computed - request->num_placeholders, request->num_known));
    }
    if (request->num_known < request->num_last) continue;
    if (request->num_turns_left > 0 && request->state == ToyState::kRunning) {
      end_turn(*request);
      continue;
    }
    // dynamo#6681: it stops in the step in which it is aborted.
    const int num_calls = one_in(4) ? 3 : 1;
    for (int i = 0; i < num_calls; ++i) scheduler_->on_finished(request->id);
    if (num_calls > 1) ++totals_.double_finishes;
    if (request->state == ToyState::kLoading) {
      request->state = ToyState::kZombie;  // Preempted behind its last step, it loaded again.
    } else if (request->state != ToyState::kZombie) {
      finish(*request);
    }
  }
}

std::vector<std::string> ToyEngine::count_announcements(const Output& output) {
  std::vector<std::string> complete;
  for (const RankOutput& rank : output.ranks) {
    for (const std::string& id : rank.announced) {
      if (++num_announced_[id] < 2) continue;
      num_announced_.erase(id);
      complete.push_back(id);
    }
  }
  return complete;
}

void ToyEngine::fail_announced(const std::vector<PlanOracle::Told>& announced) {
  for (const PlanOracle::Told& failure : announced) {
    // By id, before the scheduler side is asked: as vLLM's _handle_failed_recving().
    ToyRequest* request = find(failure.engine_id);
    if (request == nullptr || request->state != ToyState::kLoading) continue;
    // vllm#51637.
    EXPECT_EQ(request->uid, failure.uid)
        << "the failure of an earlier life of " << failure.engine_id << " hits a living load";
    request->load_failed = true;
    if (recompute_failed_) continue;
    scheduler_->on_finished(request->id);
    request->state = ToyState::kZombie;
    ++totals_.failed_loads;
  }
}

void ToyEngine::check_loaded(ToyRequest& request) {
  const std::uint32_t num_tokens = request.load_end * kBlockTokens;
  request.kv = request.pure_kv(num_tokens, request.load_epoch);
  request.num_computed = num_tokens;
  totals_.loaded_blocks += request.load_end - request.load_first;
  if (groups_.size() > 1) ++totals_.window_loads;
  for (std::uint32_t group = 0; group < groups_.size(); ++group) {
    const std::uint32_t first = first_needed(group, request.load_end) * kBlockTokens;
    const SlabClassId slab_class = groups_[group].slab_class;
    for (std::uint32_t at = first; at < num_tokens; ++at) {
      const std::uint32_t block = request.tables[group][at / kBlockTokens];
      for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
        if (ranks_[rank]->holds(block, at % kBlockTokens, of_group(request.kv[at], group),
                                slab_class))
          continue;
        std::uint64_t epoch = epoch_;
        while (epoch > 0 && !ranks_[rank]->holds(
                                block, at % kBlockTokens,
                                of_group(request.pure_kv(at + 1, epoch)[at], group), slab_class)) {
          --epoch;
        }
        ADD_FAILURE() << "rank " << rank << " loaded something else for token " << at << " of "
                      << request.id << " into block " << block << " of group " << group
                      << " (blocks " << request.load_first << " to " << request.load_end << "): "
                      << (epoch == 0 ? "anything"
                                     : "what was computed with the weights of epoch " +
                                           std::to_string(epoch) + ", now it is " +
                                           std::to_string(epoch_));
        return;
      }
    }
  }
}

void ToyEngine::step_back(ToyRequest& request) {
  ++totals_.whole_loads;
  --request.num_computed;
  request.kv.pop_back();
  for (std::size_t group = 0; group < groups_.size(); ++group) {
    const std::uint32_t seen = groups_[group].reach.first_seen(request.num_computed) / kBlockTokens;
    EXPECT_FALSE(is_window(group) && request.tables[group].at(seen) == kToyNull)
        << "group " << group << " lacks what the last token of " << request.id << " sees";
  }
}

void ToyEngine::finish_load(const std::string& id) {
  ToyRequest* request = find(id);
  // vllm#43226, vllm#46240: the engine asserts exactly this.
  ASSERT_NE(request, nullptr) << "a load of " << id << " was told, which is gone";
  ASSERT_TRUE(request->state == ToyState::kLoading || request->state == ToyState::kZombie)
      << "a load of " << id << " was told, which does not wait for one";
  if (request->state == ToyState::kZombie) return finish(*request);
  waiting_.push_front(request);
  if (!request->load_failed) {
    EXPECT_EQ(request->load_epoch, epoch_) << "a load from before a reset";
    check_loaded(*request);
    if (request->num_computed == request->num_known) step_back(*request);
    request->state = ToyState::kReady;
    return;
  }
  ++totals_.failed_loads;
  EXPECT_TRUE(request->load_may_fail || request->load_epoch != epoch_)
      << "a load of " << id << " failed for no reason";
  if (request->load_ended_well) ++totals_.undone_loads;
  if (request->load_first == 0 || groups_.size() > 1 || one_in(2)) {
    release(request->tables);
    request->restart();
  } else {
    // It keeps its blocks and computes into those that were to be loaded.
    request->num_computed = request->load_first * kBlockTokens;
    request->kv = request->pure_kv(request->num_computed, request->load_epoch);
    request->state = ToyState::kReady;
  }
}

void ToyEngine::process(const Output& output) {
  std::vector<std::span<const std::byte>> reports;
  for (const RankOutput& rank : output.ranks) {
    StepReport report;
    if (!rank.report.empty()) {
      reports.push_back(std::as_bytes(std::span(rank.report)));
      report = decode_report(reports.back());
    }
    oracle_.take_announced(rank.announced, report);
    oracle_.take_report(report);
  }
  const std::vector<PlanOracle::Told> announced = oracle_.take_announced();
  std::vector<std::string> ids;
  for (const PlanOracle::Told& failure : announced) ids.push_back(failure.engine_id);
  EXPECT_EQ(sorted(count_announcements(output)), sorted(ids))
      << "what the engine counts by id is what the ranks mean";
  fail_announced(announced);
  take_samples(output.scheduled);
  fold(reports, announced);
  std::erase_if(orphans_, [this](const auto& orphan) {
    if (oracle_.loading(orphan.first)) return false;
    release(orphan.second.tables);
    return true;
  });
  for (const auto& [uid, orphan] : orphans_) {
    const ToyRequest* request = find(orphan.id);
    if (request != nullptr && request->state == ToyState::kLoading) ++totals_.together_loads;
  }
  const SchedulerSnapshot now = scheduler_->snapshot();
  EXPECT_TRUE(now.tier.conserved());
  EXPECT_EQ(now.num_tombstones,
            static_cast<std::uint64_t>(std::count_if(
                requests_.begin(), requests_.end(),
                [](const ToyRequest& request) { return request.state == ToyState::kZombie; })));
}

void ToyEngine::fold(const std::vector<std::span<const std::byte>>& reports,
                     const std::vector<PlanOracle::Told>& announced) {
  // What the engine is told is exactly what ended for somebody who waits, and nothing else.
  std::vector<std::string> ended;
  std::vector<std::string> stale;
  for (const PlanOracle::Told& load : oracle_.take_ended_loads()) {
    ToyRequest* request = find(load.uid);
    if (request == nullptr) continue;
    if (load.failed) request->load_may_fail = true;
    if (!load.failed) request->load_ended_well = true;
    const bool succeeded = !load.failed && request->load_epoch == epoch_;
    if (request->state == ToyState::kZombie || succeeded) ended.push_back(request->id);
  }
  for (const PlanOracle::Told& failure : announced) {
    const ToyRequest* request = find(failure.uid);
    (request == nullptr ? stale : ended).push_back(failure.engine_id);
  }
  totals_.stale_notices += stale.size();
  const FoldResult result = scheduler_->fold(reports);
  EXPECT_EQ(sorted(result.ended), sorted(ended));
  EXPECT_EQ(sorted(result.stale), sorted(stale));
  for (const std::string& id : result.ended) finish_load(id);
}

void ToyEngine::process_outputs(std::size_t num_left) {
  while (outputs_.size() > num_left) {
    process(outputs_.front());
    outputs_.pop_front();
  }
}

void ToyEngine::drain() {
  for (RankState& state : rank_states_) state.silent_until = 0;
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
    const TierSize size = scheduler_->tier_size();
    // What was in use at the last plan goes with the next one.
    if (size.num_chunks > std::max(size.target_chunks, size.chunks_per_run)) return false;
    return requests_.empty() && orphans_.empty() && outputs_.empty() && oracle_.idle() &&
           !size.is_at_work && now.num_backlog == 0 && now.num_stores_in_flight == 0 &&
           now.num_loads_in_flight == 0;
  };
  while (!quiet()) {
    ASSERT_LT(std::chrono::steady_clock::now() - start, std::chrono::minutes(1))
        << "does not come to rest: " << scheduler_->snapshot().num_backlog << " in the backlog, "
        << scheduler_->snapshot().num_stores_in_flight << " stores, "
        << scheduler_->snapshot().num_loads_in_flight << " loads, " << requests_.size()
        << " requests, " << orphans_.size() << " orphans";
    ASSERT_TRUE(idle_step());
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  const SchedulerSnapshot now = scheduler_->snapshot();
  EXPECT_TRUE(now.tier.conserved());
  EXPECT_EQ(now.tier.num_writable, 0U);
  EXPECT_EQ(now.tier.num_aborted, 0U);
  EXPECT_EQ(now.tier.num_leased, 0U);
  EXPECT_EQ(now.tier.num_dying, 0U);
  EXPECT_EQ(now.tier.num_quarantined, oracle_.num_damaged());
  const TierSize size = scheduler_->tier_size();
  EXPECT_EQ(size.failure, "");
  EXPECT_EQ(now.tier.num_awaited, 0U) << "for a request that is gone";
  EXPECT_EQ(now.num_requests, 0U);
  EXPECT_EQ(now.num_tombstones, 0U);
  EXPECT_TRUE(num_announced_.empty()) << "the engine waits for a rank";
  EXPECT_EQ(pool_.num_free(), num_blocks_ - (groups_.size() > 1 ? 1 : 0))
      << "G1, G2: nothing holds a block";
  for (auto& rank : ranks_) {
    rank->engine().close();
    EXPECT_TRUE(rank->engine().collect().empty());
    EXPECT_TRUE(rank->engine().take_report().empty());
  }
}

void ToyEngine::expect_ranks_recorded() const {
  std::vector<RankRecording> of_ranks;
  for (const auto& rank : ranks_) {
    const recorder::Recording recording = rank->recorded();
    of_ranks.push_back(expect_rank_recording(recording));
    const RankRecording& found = of_ranks.back();
    if (!recording.is_whole()) return;
    EXPECT_EQ(found.ends.size(), found.stores.size() + found.loads.size()) << "not all have ended";
  }
  EXPECT_EQ(of_ranks[0].stores, of_ranks[1].stores);
  EXPECT_EQ(of_ranks[0].loads, of_ranks[1].loads);
}

ToyTotals ToyEngine::totals() const {
  ToyTotals totals = totals_;
  const SchedulerSnapshot now = scheduler_->snapshot();
  totals.early_blocks = oracle_.num_early_blocks;
  totals.stored = now.stored;
  totals.skipped_ring = now.skipped_ring;
  totals.skipped_exhausted = now.skipped_exhausted;
  totals.skipped_declined = now.skipped_declined;
  totals.skipped_unwanted = now.skipped_unwanted;
  for (const std::uint64_t count : now.hints) totals.followed_hints += count;
  totals.rule_switches = now.tier.num_rule_switches_total;
  totals.skipped_reallocated = now.skipped_reallocated;
  totals.failed_stores = now.failed_stores;
  totals.expired_loads = now.expired_loads;
  totals.evicted = now.tier.num_evicted_total;
  for (const auto& slab_class : now.slabs.classes) {
    totals.moved_chunks += slab_class.num_gained_total;
  }
  totals.retired_chunks = oracle_.num_retired;
  totals.restored_chunks = oracle_.num_restored;
  if (is_replicated_) {
    totals.stored_by_first = ranks_[0]->engine().stats().stored_blocks;
    totals.stored_by_second = ranks_[1]->engine().stats().stored_blocks;
  }
  return totals;
}

}  // namespace kvferry::connector
