// SPDX-License-Identifier: Apache-2.0
// The engine's work in a step, its plan, and the ranks' reports of it.
#include "kvferry/base/error.hpp"
#include "kvferry/connector/scheduler/scheduler_engine.hpp"
#include "kvferry/connector/wire/step_plan.hpp"
#include "kvferry/connector/wire/step_report.hpp"

#include "scheduler_parts.hpp"

#include <exception>
#include <string>

namespace kvferry::connector {

void SchedulerEngine::on_scheduled(std::string_view engine_id, TableUpdate update,
                                   GroupBlocks blocks, const StepTokens& tokens) {
  parts_->in_turn([&] {
    Request* request = parts_->requests.find(engine_id);
    if (parts_->calls.is_on()) parts_->calls.scheduled(request, update, blocks, tokens);
    if (!blocks.empty() && blocks.size() != parts_->groups.size()) {
      throw ProtocolError("request " + std::string(engine_id) + " has blocks of " +
                          std::to_string(blocks.size()) + " KV cache groups; expected " +
                          std::to_string(parts_->groups.size()));
    }
    parts_->expect_in_pool(blocks);
    parts_->planner.enter_step(parts_->last_seq.next());
    parts_->loaded.on_scheduled();
    if (request == nullptr) {
      parts_->drop_added(update, blocks, tokens.num_computed);
      return;
    }
    parts_->lookups.end_await(*request);
    parts_->loaded.on_reached(*request);
    request->update_tables(update, blocks);
    if (tokens.num_prompt > 0) parts_->note_prompt(*request, tokens.num_prompt);
    parts_->prover.cover(*request, update, blocks, tokens, parts_->last_seq);
    // Most steps of a decoding request complete no block. Then there is no need to look at its
    // hashes.
    if (!parts_->planner.note_step(*request, update, tokens)) return;
    parts_->sync_keys(*request);
    parts_->planner.offer_step(*request, update, tokens);
  });
}

void SchedulerEngine::on_state(std::string_view engine_id, GroupId group, BlockId block,
                               std::uint32_t num_tokens) {
  parts_->in_turn([&] {
    Request* request = parts_->requests.find(engine_id);
    parts_->calls.state(request, group, block, num_tokens);
    if (!parts_->groups.has(group) || !parts_->groups.is_told(group)) {
      throw ProtocolError("the engine left a state of request " + std::string(engine_id) +
                          " in KV cache group " + std::to_string(group.value()) +
                          ", which has none");
    }
    parts_->expect_in_pool(std::span(&block, 1));
    parts_->planner.enter_step(parts_->last_seq.next());
    parts_->planner.drop_rewritten(block);
    parts_->prover.begin_write(group, block,
                               request == nullptr ? Generation() : request->generation);
    if (request == nullptr || request->state != RequestState::kIdle) return;
    if (!parts_->planner.takes_states(*request)) return;
    parts_->sync_keys(*request);
    // A state in the middle of a block has no key: the engine keeps it for itself.
    const std::uint32_t block_tokens = parts_->groups.block_tokens(group);
    const std::uint32_t num_blocks = num_tokens / block_tokens;
    if (num_tokens % block_tokens != 0 || num_blocks > request->keys_of(group).size()) return;
    auto& table = request->tables[group.value()];
    if (num_blocks == 0 || num_blocks > table.size()) return;
    // With drafts the engine moves blocks within a table without saying so.
    table[num_blocks - 1] = block;
    parts_->prover.note_state(*request, {group, num_blocks - 1, block});
  });
}

std::string SchedulerEngine::finish_plan() {
  if (parts_->keeper && parts_->options.keeper_thread == cpu_tier::KeeperThread::kNone) {
    parts_->keeper->keep();
  }
  return parts_->in_turn([&] {
    parts_->calls.plan(parts_->last_seq.next());
    parts_->expect_ranks();
    parts_->promises.expire();
    parts_->planner.offer_newly_proven();
    StepPlan plan;
    plan.domain = parts_->options.domain;
    plan.seq = parts_->last_seq = parts_->last_seq.next();
    parts_->patience.on_plan(plan.seq);
    parts_->load_patience.on_plan();
    if (!parts_->first_plan) parts_->first_plan = parts_->patience.stamp();
    parts_->loads.plan(plan, parts_->patience, parts_->load_patience);
    plan.stores = parts_->planner.plan(parts_->patience.stamp());
    parts_->resizer.plan(plan);
    parts_->loaded.on_plan();
    parts_->end_step();
    parts_->decisions.moved(*parts_->tier);
    parts_->decisions.planned(plan);
    parts_->dcheck_consistent();
    return encode(plan);
  });
}

FoldResult SchedulerEngine::fold(std::span<const std::span<const std::byte>> encoded) {
  return parts_->in_turn([&] {
    parts_->calls.fold(encoded);
    const std::vector<StepReport> reports = parts_->readable(encoded);
    parts_->stale_reports += encoded.size() - reports.size();
    parts_->patience.on_output();
    parts_->load_patience.on_output();
    for (const StepReport& report : reports) parts_->mark(report);
    if (parts_->ranks.all_ready()) parts_->grow_tier();
    parts_->loads.settle_failures();
    parts_->stores.settle();
    parts_->resizer.settle();
    parts_->heed_damage();
    FoldResult result = parts_->loads.settle_ends();
    for (const std::string& engine_id : result.ended) {
      const Request* request = parts_->requests.find(engine_id);
      if (request != nullptr && request->state == RequestState::kIdle)
        parts_->loaded.on_ended(*request);
    }
    for (const std::string& engine_id : parts_->loads.take_succeeded()) {
      const Request* request = parts_->requests.find(engine_id);
      if (request != nullptr) parts_->prover.end_load(*request);
    }
    if (const std::vector<TransferId> heard = parts_->stores.take_witnesses(); !heard.empty()) {
      parts_->prover.hear(heard);
      parts_->planner.offer_newly_proven();
    }
    parts_->decisions.moved(*parts_->tier);
    parts_->dcheck_consistent();
    return result;
  });
}

}  // namespace kvferry::connector
