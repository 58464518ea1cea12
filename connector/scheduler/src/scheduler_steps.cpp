// SPDX-License-Identifier: Apache-2.0
// What a step computes.
#include "kvferry/base/error.hpp"

#include "scheduler_impl.hpp"

#include <algorithm>
#include <string>

namespace kvferry::connector {

void SchedulerEngine::Impl::on_scheduled(std::string_view engine_id, TableUpdate update,
                                         GroupBlocks blocks, const StepTokens& tokens) {
  const std::uint32_t num_computed_tokens = tokens.num_computed;
  const std::size_t num_groups = groups_.size();
  if (!blocks.empty() && blocks.size() != num_groups) {
    throw ProtocolError("request " + std::string(engine_id) + " has blocks of " +
                        std::to_string(blocks.size()) + " KV cache groups; expected " +
                        std::to_string(num_groups));
  }
  in_step_ = true;
  Request* request = requests_.find(engine_id);
  const std::uint32_t first_written = num_computed_tokens / options_.block_tokens;
  if (request == nullptr) {
    // It is not followed, but it writes them all the same, in this step or a later one.
    drop_added(update, blocks, first_written);
    return;
  }
  lookups_.end_await(*request);
  // All of it is computed anew: nothing is left from before a reset.
  if (update == TableUpdate::kReplace && num_computed_tokens == 0) request->storable = true;
  cover(*request, update, blocks, tokens);
  // Most steps of a decoding request complete no block; its hashes need not be looked at then.
  const std::uint32_t complete =
      (num_computed_tokens + tokens.num_scheduled) / options_.block_tokens;
  if (complete == first_written && request->num_offered == complete) return;
  sync_keys(*request);
  // What is computed again (a failed load, a roll-back) is offered again.
  const std::uint32_t first = std::min(request->num_offered, first_written);
  std::uint32_t end = std::min(complete, static_cast<std::uint32_t>(request->num_keys()));
  for (const auto& table : request->tables) {
    end = std::min(end, static_cast<std::uint32_t>(table.size()));
  }
  // This step writes these blocks, maybe under a key that the backlog knows them by: what was read
  // at the bind would be the old content.
  for (const auto& table : request->tables) {
    for (std::uint32_t i = first_written; i < end; ++i) drop_rewritten(table[i]);
  }
  request->num_offered = first;
  if (first <= request->store_end) request->store_end = Request::kNoStoreEnd;
  if (!request->storable || first >= end) return;
  for (std::size_t group = 0; group < num_groups; ++group) {
    // Later the engine moves blocks within a table.
    if (update == TableUpdate::kReplace && groups_.has_states(group)) {
      defer_states(*request, group, first, std::min(first_written, end));
    }
  }
  offer_proven(*request, OfferTo::kStep);
  if (request->num_proven < end) doubt(*request);
}

void SchedulerEngine::Impl::drop_added(TableUpdate update, GroupBlocks blocks,
                                       std::uint32_t first_written) {
  const std::size_t kept = update == TableUpdate::kReplace ? first_written : 0;
  for (std::size_t group = 0; group < blocks.size(); ++group) {
    for (std::size_t i = kept; i < blocks[group].size(); ++i) {
      drop_rewritten(blocks[group][i]);
      begin_write(group, blocks[group][i], Generation());
    }
  }
}

void SchedulerEngine::Impl::on_preempted(std::string_view engine_id) {
  Request* request = requests_.find(engine_id);
  // A request that already loads again was preempted before that load, by a reset of the engine's
  // cache.
  if (request == nullptr || request->state != RequestState::kIdle) return;
  offer_rest(*request);
  forget_uncomputed(*request);
  leave_doubt(*request);
  requests_.preempt(*request);
  sharing_.end_turn(*request);
  await_turn(*request);
}

}  // namespace kvferry::connector
