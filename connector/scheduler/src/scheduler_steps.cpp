// SPDX-License-Identifier: Apache-2.0
// What the engine does in a step, and the plan of it.
#include "kvferry/base/error.hpp"
#include "kvferry/connector/wire/step_plan.hpp"

#include "scheduler_impl.hpp"

#include <optional>
#include <string>

namespace kvferry::connector {

void SchedulerEngine::Impl::note_local(std::string_view engine_id, std::uint32_t num_local_tokens) {
  const Request* request = requests_.find(engine_id);
  if (request == nullptr || request->state != RequestState::kIdle) return;
  prover_.note_local(*request, num_local_tokens, last_seq_);
}

void SchedulerEngine::Impl::on_scheduled(std::string_view engine_id, TableUpdate update,
                                         GroupBlocks blocks, const StepTokens& tokens) {
  if (!blocks.empty() && blocks.size() != groups_.size()) {
    throw ProtocolError("request " + std::string(engine_id) + " has blocks of " +
                        std::to_string(blocks.size()) + " KV cache groups; expected " +
                        std::to_string(groups_.size()));
  }
  planner_.enter_step(last_seq_.next());
  Request* request = requests_.find(engine_id);
  if (request == nullptr) {
    drop_added(update, blocks, tokens.num_computed / options_.block_tokens);
    return;
  }
  lookups_.end_await(*request);
  request->update_tables(update, blocks);
  prover_.cover(*request, update, blocks, tokens, last_seq_);
  // Most steps of a decoding request complete no block; its hashes need not be looked at then.
  if (!planner_.note_step(*request, update, tokens)) return;
  sync_keys(*request);
  planner_.offer_step(*request, update, tokens);
}

void SchedulerEngine::Impl::drop_added(TableUpdate update, GroupBlocks blocks,
                                       std::uint32_t first_written) {
  const std::size_t kept = update == TableUpdate::kReplace ? first_written : 0;
  for (std::size_t group = 0; group < blocks.size(); ++group) {
    for (std::size_t i = kept; i < blocks[group].size(); ++i) {
      planner_.drop_rewritten(blocks[group][i]);
      prover_.begin_write(group, blocks[group][i], Generation());
    }
  }
}

void SchedulerEngine::Impl::on_state(std::string_view engine_id, GroupId group, BlockId block,
                                     std::uint32_t num_tokens) {
  if (!groups_.has(group) || !groups_.has_states(group.value())) {
    throw ProtocolError("the engine left a state of request " + std::string(engine_id) +
                        " in KV cache group " + std::to_string(group.value()) + ", which has none");
  }
  planner_.enter_step(last_seq_.next());
  planner_.drop_rewritten(block);
  Request* request = requests_.find(engine_id);
  prover_.begin_write(group.value(), block,
                      request == nullptr ? Generation() : request->generation);
  if (request == nullptr || request->state != RequestState::kIdle) return;
  if (!planner_.takes_states(*request)) return;
  sync_keys(*request);
  // A state amid a block has no key: the engine keeps it for itself.
  const std::uint32_t num_blocks = num_tokens / options_.block_tokens;
  if (num_tokens % options_.block_tokens != 0 || num_blocks > request->num_keys()) return;
  auto& table = request->tables[group.value()];
  if (num_blocks == 0 || num_blocks > table.size()) return;
  // With drafts the engine moves blocks within a table, and does not say so.
  table[num_blocks - 1] = block;
  prover_.note_state(*request, {group.value(), num_blocks - 1, block});
}

void SchedulerEngine::Impl::on_preempted(std::string_view engine_id) {
  Request* request = requests_.find(engine_id);
  // A request that already loads again was preempted before that load, by a reset of the engine's
  // cache.
  if (request == nullptr || request->state != RequestState::kIdle) return;
  offer_rest(*request);
  prover_.on_preempted(*request);
  planner_.on_preempted(*request);
  requests_.preempt(*request);
  sharing_.end_turn(*request);
  await_turn(*request);
}

void SchedulerEngine::Impl::offer_rest(Request& request) {
  if (request.state != RequestState::kIdle || !planner_.is_storable(request)) return;
  sync_keys(request);
  planner_.offer_rest(request);
}

std::string SchedulerEngine::Impl::finish_plan() {
  expect_ranks();
  planner_.offer_newly_proven();
  StepPlan plan;
  plan.domain = options_.domain;
  plan.seq = last_seq_ = last_seq_.next();
  patience_.on_plan(plan.seq);
  load_patience_.on_plan();
  if (!first_plan_) first_plan_ = patience_.stamp();
  loads_.plan(plan, patience_, load_patience_);
  plan.stores = planner_.plan(patience_.stamp());
  end_step();
  return encode(plan);
}

void SchedulerEngine::Impl::end_step() {
  planner_.end_step();
  tiers_.end_step();
}

void SchedulerEngine::Impl::expect_ranks() {
  if (!first_plan_) return;
  if (!ranks_.all_ready()) {
    const auto age = patience_.overdue(*first_plan_);
    if (!age) return;
    end_step();
    throw TimeoutError(ranks_.describe_missing() + ", " + std::to_string(age->count()) +
                       " s of steps after the first plan (rank_timeout): look for that worker's own"
                       " error; every process of the engine must start with the same"
                       " configuration");
  }
  std::optional<Overdue> late;
  stores_.add_overdue(patience_, late);
  loads_.add_overdue(patience_, late);
  if (!late) return;
  end_step();
  std::string names;
  for (const RankId rank : late->silent) {
    stores_.quarantine(rank);
    names += (names.empty() ? "" : ", ") + std::to_string(rank.value());
  }
  dcheck_consistent();
  throw TimeoutError(
      "rank " + names + " of " + std::to_string(options_.world_size) + " has not ended " +
      late->what + " and has said nothing of it for " + std::to_string(late->age.count()) +
      " s of steps (rank_timeout): it is lost. The memory that it may still write is in"
      " quarantine (" +
      std::to_string(tiers_.snapshot().num_quarantined) +
      " slots). Look for that worker's own error; restart the engine");
}

}  // namespace kvferry::connector
