// SPDX-License-Identifier: Apache-2.0
// The life of requests, and the snapshot.
#include "kvferry/connector/scheduler/scheduler_engine.hpp"

#include "kvferry/base/error.hpp"

#include "scheduler_parts.hpp"

#include <algorithm>
#include <exception>
#include <string>
#include <unordered_set>
#include <utility>

namespace kvferry::connector {

SchedulerEngine::SchedulerEngine(SchedulerOptions options) {
  validate(options);
  parts_ = std::make_unique<Parts>(std::move(options));
}
// The keeper ends first. What the other parts then give back belongs to no call.
SchedulerEngine::~SchedulerEngine() {
  parts_->keeper.reset();
  parts_->peer_answers.stop();
}

void SchedulerEngine::set_pool(BlockPool* pool) {
  parts_->in_turn([&] {
    parts_->calls.simple(recorder::EventKind::kPool, pool == nullptr ? 0 : 1);
    parts_->pool = pool;
    parts_->read_pool = parts_->calls.watched(pool);
    if (pool != nullptr) pool->set_weights(parts_->weights);
    parts_->planner.set_pool(parts_->read_pool);
  });
}

void SchedulerEngine::on_request(std::string_view engine_id,
                                 std::shared_ptr<const BlockHashes> hashes,
                                 const RequestLimits& limits) {
  parts_->in_turn([&] {
    parts_->calls.request(parts_->requests.next_id(), engine_id, limits);
    parts_->finish(engine_id, 0);  // If the id is in use, its earlier life ends here.
    Request& request = parts_->requests.arrive(engine_id, std::move(hashes));
    request.limits = limits;
    request.load_limit = limits.max_load / parts_->options.hash_tokens;
    request.store_limit = limits.max_store / parts_->options.hash_tokens;
    parts_->sync_keys(request);
    parts_->await_turn(request);
  });
}

void SchedulerEngine::on_hints(std::string_view engine_id, std::string_view session,
                               std::span<const ClientHint> hints) {
  parts_->in_turn([&] {
    const Request* request = parts_->requests.find(engine_id);
    parts_->calls.hints(request, session, hints);
    if (request != nullptr) parts_->promises.on_request(*request, session, hints);
  });
}

bool SchedulerEngine::knows(std::string_view engine_id) const {
  return parts_->requests.find(engine_id) != nullptr;
}

std::optional<std::uint32_t> SchedulerEngine::lookup(std::string_view engine_id,
                                                     std::uint32_t num_local_tokens,
                                                     std::uint32_t num_tokens) {
  return parts_->in_turn([&]() -> std::optional<std::uint32_t> {
    Request* request = parts_->requests.find(engine_id);
    parts_->calls.lookup(request, num_local_tokens, num_tokens);
    if (request != nullptr && request->state == RequestState::kIdle && num_tokens > 0) {
      parts_->prover.note_local(*request, num_local_tokens, parts_->last_seq);
      parts_->loaded.on_reached(*request);
      if (parts_->loaded.is_blocked()) {
        parts_->decisions.put_off(*request);
        return std::nullopt;
      }
      if (!parts_->loads.announces(request->engine_id) && !parts_->loads.damage().distrusted()) {
        return parts_->look_up(*request, num_local_tokens, num_tokens);
      }
    }
    parts_->decisions.found_nothing(request);
    return 0;
  });
}

bool SchedulerEngine::note_local(std::string_view engine_id, std::uint32_t num_local_tokens) {
  return parts_->in_turn([&] {
    const Request* request = parts_->requests.find(engine_id);
    parts_->calls.local(request, num_local_tokens);
    if (request == nullptr || request->state != RequestState::kIdle) return true;
    parts_->prover.note_local(*request, num_local_tokens, parts_->last_seq);
    parts_->loaded.on_reached(*request);
    if (!parts_->loaded.is_blocked()) return true;
    parts_->decisions.put_off(*request);
    return false;
  });
}

void SchedulerEngine::on_allocated(std::string_view engine_id, GroupBlocks tables,
                                   std::uint32_t num_external_tokens) {
  parts_->in_turn([&] {
    Request* request = parts_->requests.find(engine_id);
    parts_->calls.allocated(request, tables, num_external_tokens);
    if (request == nullptr || request->state != RequestState::kIdle) {
      throw ProtocolError(
          "the engine allocated a load for request " + std::string(engine_id) +
          (request == nullptr ? ", which it never announced" : " while another load is under way"));
    }
    parts_->expect_in_pool(tables);
    const std::uint32_t hash_tokens = parts_->options.hash_tokens;
    const std::uint32_t num_hashes = (num_external_tokens + hash_tokens - 1) / hash_tokens;
    if (num_hashes == 0) {
      throw ProtocolError("the engine allocated a load of " + std::to_string(num_external_tokens) +
                          " tokens for request " + std::string(engine_id));
    }
    Lookups::Taken taken = parts_->lookups.take(*request, num_hashes, tables);
    parts_->lookups.end_await(*request);
    // The whole prefix is offered once the request runs, including its loaded part. So the tier
    // learns what is used, touches what it holds, and gets back what it has lost.
    parts_->planner.offer_again(*request, 0);
    // From now on a reset sees that the request has blocks from before it.
    for (std::size_t group = 0; group < request->tables.size() && group < tables.size(); ++group) {
      request->tables[group].assign(tables[group].begin(), tables[group].end());
    }
    // A reset came between lookup and allocation, so the local blocks may be from before it.
    if (!taken.was_valid) parts_->planner.hold_back(*request);
    parts_->prover.begin_load(*request, taken.first, taken.end);
    const bool has_lease = taken.leased.has_value();
    parts_->loads.begin(*request, parts_->transfers.next(), std::move(taken.leased));
    parts_->decisions.load_begun(*request, taken.first, taken.end, has_lease);
    if (has_lease) {
      parts_->hit_tokens += num_external_tokens;
      parts_->sharing.on_begun(*request, taken.first, taken.end);
    }
    parts_->dcheck_consistent();
  });
}

void SchedulerEngine::on_blocks_invalid(std::span<const BlockId> blocks) {
  parts_->in_turn([&] {
    if (blocks.empty()) return;
    parts_->calls.blocks_invalid(blocks);
    parts_->expect_in_pool(blocks);
    const std::unordered_set<BlockId> invalid(blocks.begin(), blocks.end());
    std::vector<BlockId> lost(blocks.begin(), blocks.end());
    parts_->requests.for_each([&](Request& request) {
      const std::optional<std::uint32_t> first = parts_->prover.find_first(request, invalid);
      if (!first) return;
      // Everything after the lost blocks was computed from them.
      const std::vector<BlockId> its = parts_->prover.take_back(request, *first);
      lost.insert(lost.end(), its.begin(), its.end());
      parts_->planner.offer_again(request, *first);
      // With asynchronous scheduling vLLM takes the next step's token for that of the failed step,
      // and the ranks do not. So they disagree about what comes after the tokens known now.
      if (request.state != RequestState::kIdle) return;
      parts_->sync_keys(request);
      parts_->prover.distrust_new_keys(request);
    });
    for (const BlockId block : lost) parts_->prover.forget(block);
    parts_->planner.forget(lost);
    parts_->loads.cancel_stores(parts_->stores.abort_stores_of(lost));
    parts_->dcheck_consistent();
  });
}

void SchedulerEngine::on_preempted(std::string_view engine_id) {
  parts_->in_turn([&] {
    Request* request = parts_->requests.find(engine_id);
    parts_->calls.preempted(request);
    // If the request loads again already, a reset of the engine's cache preempted it before that
    // load.
    if (request == nullptr || request->state != RequestState::kIdle) return;
    parts_->offer_rest(*request);
    parts_->prover.on_preempted(*request);
    parts_->planner.on_preempted(*request);
    parts_->requests.preempt(*request);
    parts_->sharing.end_turn(*request);
    parts_->loaded.on_reached(*request);
    parts_->await_turn(*request);
  });
}

void SchedulerEngine::on_finished(std::string_view engine_id, std::uint32_t num_tokens) {
  parts_->in_turn([&] {
    parts_->calls.finished(parts_->requests.find(engine_id), num_tokens);
    parts_->finish(engine_id, num_tokens);
  });
}

void SchedulerEngine::reset_cache() {
  parts_->in_turn([&] {
    parts_->calls.reset();
    parts_->loads.cancel_stores(parts_->stores.abort_all());
    parts_->loads.doom_all();
    parts_->promises.clear();
    parts_->tier->forget_all();
    parts_->tier->leave_name_space();
    parts_->planner.forget_all(parts_->requests);
    parts_->prover.forget_all(parts_->read_pool);
    parts_->lookups.forget_answers();
    parts_->decisions.moved(*parts_->tier);
    parts_->dcheck_consistent();
  });
}

void SchedulerEngine::change_weights(WeightsId to, OldBlocks old_blocks) {
  parts_->in_turn([&] {
    Parts& parts = *parts_;
    if (to == parts.weights) return;
    parts.calls.weights(to, old_blocks == OldBlocks::kForgotten);
    if (old_blocks == OldBlocks::kForgotten) {
      parts.loads.cancel_stores(parts.stores.abort_stores_of(parts.weights));
      parts.tier->forget_all(parts.weights);
    }
    parts.loads.doom_all();
    parts.planner.forget_all(parts.requests);
    // What the engine's own cache still has is of the old weights.
    parts.prover.forget_all(nullptr);
    parts.requests.for_each([&](const Request& request) { parts.lookups.end_await(request); });
    parts.take_weights(to);
    parts.requests.for_each([&](Request& request) { parts.sync_keys(request); });
    parts.lookups.forget_answers();
    parts.decisions.moved(*parts.tier);
    parts.dcheck_consistent();
  });
}

std::vector<cpu_tier::KeyEvent> SchedulerEngine::take_key_events() {
  return parts_->in_turn([&] {
    parts_->calls.simple(recorder::EventKind::kTakeKeyEvents);
    return parts_->tier->take_key_events(parts_->weights);
  });
}

void SchedulerEngine::tend() { parts_->tend(); }

std::vector<std::string> SchedulerEngine::take_warnings() {
  return std::exchange(parts_->warnings, {});
}

SchedulerSnapshot SchedulerEngine::snapshot() const { return parts_->snapshot(); }

std::string SchedulerEngine::books() const { return parts_->books(kMostInBooks); }

std::uint32_t SchedulerEngine::num_slots() const {
  return parts_->resizer.num_in_use() * parts_->options.classes.front().slots_per_chunk;
}

std::uint32_t SchedulerEngine::max_slots() const { return parts_->max_slots(); }

void SchedulerEngine::resize(std::uint32_t num_chunks) {
  parts_->in_turn([&] {
    parts_->calls.simple(recorder::EventKind::kResize, num_chunks);
    parts_->resizer.set_target(num_chunks);
  });
}

TierSize SchedulerEngine::tier_size() const { return parts_->resizer.size(); }

void SchedulerEngine::check_invariants(CheckDepth depth) const {
  parts_->check_consistent();
  if (depth == CheckDepth::kAll) parts_->tier->check_invariants();
}

bool SchedulerEngine::is_busy() const {
  return parts_->stores.num_in_flight() + parts_->loads.num_in_flight() > 0;
}

}  // namespace kvferry::connector
