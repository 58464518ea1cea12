// SPDX-License-Identifier: Apache-2.0
#include "toy_engine.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

/// What happens to an engine before a step: requests come, end and are given up, caches are
/// emptied.
namespace kvferry::connector {

void ToyEngine::events() {
  if (requests_.size() < 8 && one_in(2)) arrive();
  if (!requests_.empty() && one_in(10)) {
    abort(*std::next(requests_.begin(), below(static_cast<std::uint32_t>(requests_.size()))));
  }
  if (one_in(10)) scheduler_->on_finished("never seen");
  const auto session = std::find_if(
      requests_.begin(), requests_.end(),
      [](const ToyRequest& request) { return request.state == ToyState::kBetweenTurns; });
  if (session != requests_.end() && one_in(3)) begin_turn(*session);
  preempt_before_its_last_sample();
  if (one_in(200)) reset();
  if (one_in(60)) reset_running();
  if (one_in(100)) {
    // The engine rests, or its process was stopped in a step: neither ends anybody.
    now_ += std::chrono::hours(1);
    ++(outputs_.empty() ? totals_.rests : totals_.stops);
  }
  if (one_in(15)) pool_.uncache_all();  // The engine empties its own cache and not ours.
  if (is_resized_ && one_in(40)) scheduler_->resize(below(most_chunks_ + 100));
  if (one_in(150)) rank_states_[below(2)].silent_until = totals_.steps + 5 + below(40);
}

void ToyEngine::arrive() {
  std::string id = "r" + std::to_string(below(12));
  if (ToyRequest* old = find(id)) {
    // vllm#51637: the id comes again while the load of its earlier owner runs, has failed, or its
    // failure is on its way.
    if (old->state == ToyState::kZombie || (old->state == ToyState::kLoading && one_in(3))) {
      orphan(*old);
    } else if (old->state != ToyState::kLoading && one_in(10)) {
      finish(*old);  // And nobody told the scheduler side.
    } else {
      return;
    }
  }
  std::vector<std::uint32_t> prompt(one_in(2) ? kMaxPrompt : 1 + below(kMaxPrompt));
  const std::uint32_t family = below(5);
  for (std::uint32_t i = 0; i < prompt.size(); ++i) {
    prompt[i] = static_cast<std::uint32_t>(mix(family, i) % 50);
  }
  if (one_in(2)) prompt.back() = 100 + below(4);
  requests_.emplace_back(std::move(id), ++last_uid_, std::move(prompt), 1 + below(kMaxOutput));
  // One at a time: a session keeps its blocks between its turns.
  if (!has_session() && one_in(2)) requests_.back().num_turns_left = 1 + below(4);
  waiting_.push_back(&requests_.back());
  draw_limits(requests_.back());
  scheduler_->on_request(requests_.back().id, requests_.back().hashes, requests_.back().limits);
  draw_hints(requests_.back());
  if (scheduler_->snapshot().tier.num_awaited > 0) ++totals_.awaiting_arrivals;
}

void ToyEngine::draw_limits(ToyRequest& request) {
  // What a session says counts to its prompt later on.
  if (request.num_turns_left > 0) return;
  const auto draw = [this] { return static_cast<std::uint32_t>(client_random_() % kMaxPrompt); };
  if (client_random_() % 8 == 0) request.limits.max_load = draw();
  if (client_random_() % 8 == 0) request.limits.max_store = draw();
}

void ToyEngine::draw_hints(const ToyRequest& request) {
  if (client_random_() % 2 == 0) return;
  const auto draw_session = [this] {
    const auto number = client_random_() % 4;
    return number == 0 ? std::string() : "session-" + std::to_string(number);
  };
  std::vector<ClientHint> hints(client_random_() % 3);
  for (ClientHint& hint : hints) {
    hint.action = static_cast<HintAction>(client_random_() % kNumHintActions);
    hint.time_to_live = std::chrono::milliseconds(client_random_() % 50);
    if (client_random_() % 2 == 0) hint.session = draw_session();
  }
  scheduler_->on_hints(request.id, draw_session(), hints);
}

void ToyEngine::note_wanted(const ToyRequest& request) {
  const auto most = static_cast<std::size_t>(request.limits.max_store / kBlockTokens);
  for (std::size_t i = 0; i < std::min(request.hashes->size(), most); ++i) {
    const std::span<const std::byte> hash = request.hashes->hash(i);
    wanted_.emplace(hash.begin(), hash.end());
  }
}

void ToyEngine::check_wanted(const StepPlan& plan) const {
  for (const StoreOrder& order : plan.stores) {
    for (const BlockSlot& pair : order.blocks) {
      const auto key = pool_.key(pair.block);
      if (!key) continue;
      const auto bytes = std::span(key->hash).first(key->hash_bytes);
      EXPECT_TRUE(wanted_.contains({bytes.begin(), bytes.end()}))
          << "block " << pair.block.value() << " is stored, and nobody wants it to be";
    }
  }
}

void ToyEngine::orphan(ToyRequest& request) {
  ++totals_.orphaned_loads;
  orphans_[request.uid] = {request.id, std::move(request.tables)};
  forget(request);
}

void ToyEngine::abort(ToyRequest& request) {
  const int num_calls = one_in(3) ? 3 : 1;  // dynamo#6681
  for (int i = 0; i < num_calls; ++i) scheduler_->on_finished(request.id);
  if (num_calls > 1) ++totals_.double_finishes;
  if (request.state == ToyState::kLoading) {
    request.state = ToyState::kZombie;
    ++totals_.aborted_loads;
  } else if (request.state != ToyState::kZombie) {
    finish(request);
  }
}

void ToyEngine::reset() {
  ++totals_.resets;
  ++epoch_;
  if (one_in(2)) {
    while (!running_.empty()) preempt(*running_.back());
  }
  pool_.uncache_all();
  scheduler_->reset_cache();
}

void ToyEngine::finish_in_step(const std::vector<Scheduled>& scheduled, PlanOracle::Step& step) {
  if (!scheduled.empty() && one_in(50)) {
    const ToyRequest& request =
        *scheduled[below(static_cast<std::uint32_t>(scheduled.size()))].request;
    for (int i = one_in(3) ? 2 : 1; i > 0; --i) scheduler_->on_finished(request.id);
    finished_in_step_.push_back(request.uid);
    ++totals_.finished_in_step;
    for (const ToyTable& table : request.tables) {
      for (const std::uint32_t block : table) {
        if (pool_.num_users(block) == 1) step.given_up.insert(block);
      }
    }
  }
  if (!begun_.empty() && one_in(10)) {
    ToyRequest* request = find(begun_[below(static_cast<std::uint32_t>(begun_.size()))]);
    if (request == nullptr) return;
    abort(*request);
    ++totals_.unsent_aborts;
  }
}

}  // namespace kvferry::connector
