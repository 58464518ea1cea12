// SPDX-License-Identifier: Apache-2.0
// What the tier's policy hears of requests, and what becomes of its answers.
#include "kvferry/base/error.hpp"
#include "kvferry/cpu_tier/slots/cpu_tier.hpp"

#include "scheduler_impl.hpp"

#include <algorithm>

namespace kvferry::connector {

using cpu_tier::OfferAnswer;

SchedulerEngine::Impl::Candidate SchedulerEngine::Impl::candidate_of(Request& request,
                                                                     std::size_t group,
                                                                     std::uint32_t first,
                                                                     std::uint32_t last) const {
  while (first < last && groups_.is_null(group, request.tables[group][first])) ++first;
  return {&request, group, first, last};
}

void SchedulerEngine::Impl::offer(const Candidate& candidate) {
  Request& request = *candidate.request;
  const auto& table = request.tables[candidate.group];
  answers_.resize(candidate.last - candidate.first);
  tiers_.offer(class_of(candidate), keys_of(candidate), answers_);
  for (std::uint32_t at = candidate.first; at < candidate.last; ++at) {
    OfferAnswer& answer = answers_[at - candidate.first];
    if (answer == OfferAnswer::kHeld) continue;
    if (groups_.is_null(candidate.group, table[at])) {
      answer = OfferAnswer::kHeld;  // There is nothing to store.
      continue;
    }
    // A window's or chunk's block is needed by loads that end near it only.
    const bool ends = !is_admitted(answer) && groups_.needs_all(candidate.group);
    if (ends) request.store_end = std::min(request.store_end, at);
    if (is_admitted(answer) && at < request.store_end) continue;
    answer = OfferAnswer::kDeclined;
    ++skipped_declined_;
  }
}

void SchedulerEngine::Impl::defer(const Candidate& candidate) {
  if (stores_off() || candidate.first >= candidate.last) return;
  offer(candidate);
  const std::span<const BlockId> blocks = blocks_of(candidate);
  const std::span<const cpu_tier::BlockKey> keys = keys_of(candidate);
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (!is_admitted(answers_[i]) || !proven_.holds(blocks[i], keys[i])) continue;
    if (in_step_) {
      deferred_.push_back({blocks[i], keys[i]});
    } else {
      backlog_.push(blocks[i], keys[i]);
    }
  }
}

void SchedulerEngine::Impl::defer_states(Request& request, std::size_t group, std::uint32_t first,
                                         std::uint32_t last) {
  for (std::uint32_t at = first; at < last; ++at) {
    if (!groups_.is_null(group, request.tables[group][at])) {
      defer({&request, group, at, at + 1});
    }
  }
}

void SchedulerEngine::Impl::on_state(std::string_view engine_id, GroupId group, BlockId block,
                                     std::uint32_t num_tokens) {
  if (group.value() >= groups_.size() || !groups_.has_states(group.value())) {
    throw ProtocolError("the engine left a state of request " + std::string(engine_id) +
                        " in KV cache group " + std::to_string(group.value()) + ", which has none");
  }
  in_step_ = true;
  drop_rewritten(block);
  Request* request = requests_.find(engine_id);
  proven_.begin_write(block, request == nullptr ? Generation() : request->generation);
  if (request == nullptr || request->state != RequestState::kIdle || !request->storable) return;
  if (!is_in_step(*request)) return;  // Preempted within the pass that left it.
  sync_keys(*request);
  // A state amid a block has no key: the engine keeps it for itself.
  const std::uint32_t num_blocks = num_tokens / options_.block_tokens;
  if (num_tokens % options_.block_tokens != 0 || num_blocks > request->num_keys()) return;
  auto& table = request->tables[group.value()];
  if (num_blocks == 0 || num_blocks > table.size()) return;
  // With drafts the engine moves blocks within a table, and does not say so.
  table[num_blocks - 1] = block;
  request->states_in_doubt.push_back({group.value(), num_blocks - 1, block});
  doubt(*request);
}

void SchedulerEngine::Impl::offer_rest(Request& request) {
  if (!request.storable || request.state != RequestState::kIdle) return;
  sync_keys(request);
  offer_proven(request, OfferTo::kBacklog);
}

void SchedulerEngine::Impl::offer_proven(Request& request, OfferTo where) {
  prove(request);
  offer_states(request, where);
  const std::uint32_t first = request.num_offered;
  const std::uint32_t end = request.num_proven;
  if (first >= end) return;
  request.num_offered = end;
  for (std::size_t group = 0; group < request.tables.size(); ++group) {
    if (groups_.has_states(group)) continue;  // The engine has said where they are.
    std::uint32_t kept = end;
    if (where == OfferTo::kStep) {
      kept = std::clamp(groups_.first_kept(group, request.num_computed), first, end);
    }
    defer(candidate_of(request, group, first, kept));
    const Candidate completed = candidate_of(request, group, kept, end);
    if (completed.first < end) candidates_.push_back(completed);
  }
}

void SchedulerEngine::Impl::offer_states(Request& request, OfferTo where) {
  std::erase_if(request.states_in_doubt, [&](const StateInDoubt& state) {
    if (state.at >= request.num_proven) return false;
    const cpu_tier::BlockKey& key = request.keys[state.group][state.at];
    if (!proven_.is_written_by(state.block, request.generation)) return true;
    proven_.prove(state.block, key);
    const Candidate candidate{&request, state.group, state.at, state.at + 1};
    if (where == OfferTo::kStep && groups_.settles_in_step(state.group)) {
      states_.push_back(candidate);
    } else {
      defer(candidate);
    }
    return true;
  });
}

}  // namespace kvferry::connector
