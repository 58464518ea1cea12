// SPDX-License-Identifier: Apache-2.0
#include "kvferry/connector/step_plan.hpp"
#include "kvferry/cpu_tier/cpu_tier.hpp"

#include "scheduler_impl.hpp"

#include <algorithm>
#include <optional>
#include <utility>

namespace kvferry::connector {

std::string SchedulerEngine::Impl::finish_plan() {
  StepPlan plan;
  plan.domain = options_.domain;
  plan.seq = last_seq_ = last_seq_.next();
  loads_.plan(plan);
  std::uint32_t limit = ranks_.all_ready() ? stores_.plan_limit() : 0;
  plan_backlog(plan, limit);
  for (const Candidate& candidate : candidates_) {
    if (!is_single(candidate)) plan_candidate(plan, limit, candidate);
  }
  plan_single_blocks(plan, limit);
  candidates_.clear();
  return encode(plan);
}

void SchedulerEngine::Impl::plan_backlog(StepPlan& plan, std::uint32_t& limit) {
  keys_.clear();
  blocks_.clear();
  while (blocks_.size() < limit) {
    const std::optional<BacklogEntry> entry = backlog_.pop();
    if (!entry) break;
    if (pool_ == nullptr || !pool_->holds(entry->block, entry->key)) {
      ++skipped_reallocated_;
      continue;
    }
    cpu_tier::KeyState state{};
    tier_.lookup({&entry->key, 1}, {&state, 1});
    if (!is_absent(state)) continue;
    // Two blocks of the pool can carry one key; the first stands for both.
    if (!seen_.insert(entry->key.mixed()).second) continue;
    blocks_.push_back(entry->block);
    keys_.push_back(entry->key);
  }
  seen_.clear();
  const std::uint32_t planned =
      plan_store(plan, transfer_owner(), StoreReadiness::kNow, blocks_, keys_, {});
  limit -= planned;
  if (planned == blocks_.size()) return;
  skipped_exhausted_ += blocks_.size() - planned;
  for (std::size_t i = blocks_.size(); i > planned; --i) {
    backlog_.push_front({blocks_[i - 1], keys_[i - 1]});
  }
  limit = 0;
}

void SchedulerEngine::Impl::plan_candidate(StepPlan& plan, std::uint32_t& limit,
                                           const Candidate& candidate) {
  const Request& request = *candidate.request;
  const std::size_t count = candidate.last - candidate.first;
  const std::span<const cpu_tier::BlockKey> keys =
      std::span(request.keys).subspan(candidate.first, count);
  const std::span<const BlockId> blocks = std::span(request.table).subspan(candidate.first, count);
  const Owner owner = request.owner(options_.domain);
  Predecessor predecessor = predecessor_of(candidate);
  states_.resize(count);
  tier_.lookup(keys, states_);
  if (std::all_of(states_.begin(), states_.end(), is_absent)) {
    return plan_or_defer(plan, limit, owner, blocks, keys, {&predecessor, 1});
  }
  tier_.touch(keys);
  keys_.clear();
  blocks_.clear();
  for (std::size_t i = 0; i < count; ++i) {
    if (!is_absent(states_[i])) continue;
    if (keys_.empty() && i > 0) predecessor = keys[i - 1];
    keys_.push_back(keys[i]);
    blocks_.push_back(blocks[i]);
  }
  plan_or_defer(plan, limit, owner, blocks_, keys_, {&predecessor, 1});
}

void SchedulerEngine::Impl::plan_single_blocks(StepPlan& plan, std::uint32_t& limit) {
  keys_.clear();
  blocks_.clear();
  predecessors_.clear();
  for (const Candidate& candidate : candidates_) {
    if (!is_single(candidate)) continue;
    const cpu_tier::BlockKey& key = candidate.request->keys[candidate.first];
    cpu_tier::KeyState state{};
    tier_.lookup({&key, 1}, {&state, 1});
    if (state == cpu_tier::KeyState::kReadable) tier_.touch({&key, 1});
    if (!is_absent(state) || !seen_.insert(key.mixed()).second) continue;
    keys_.push_back(key);
    blocks_.push_back(candidate.request->table[candidate.first]);
    predecessors_.push_back(predecessor_of(candidate));
  }
  seen_.clear();
  plan_or_defer(plan, limit, transfer_owner(), blocks_, keys_, predecessors_);
}

void SchedulerEngine::Impl::plan_or_defer(StepPlan& plan, std::uint32_t& limit, Owner owner,
                                          std::span<const BlockId> blocks,
                                          std::span<const cpu_tier::BlockKey> keys,
                                          std::span<const Predecessor> predecessors) {
  const std::size_t wanted = std::min<std::size_t>(blocks.size(), limit);
  const std::uint32_t planned = plan_store(plan, owner, StoreReadiness::kAfterForward,
                                           blocks.first(wanted), keys.first(wanted), predecessors);
  limit -= planned;
  if (planned < wanted) {
    skipped_exhausted_ += wanted - planned;
    limit = 0;
  }
  if (stores_off()) return;
  for (std::size_t i = planned; i < blocks.size(); ++i) backlog_.push(blocks[i], keys[i]);
}

std::uint32_t SchedulerEngine::Impl::plan_store(StepPlan& plan, Owner owner,
                                                StoreReadiness readiness,
                                                std::span<const BlockId> blocks,
                                                std::span<const cpu_tier::BlockKey> keys,
                                                std::span<const Predecessor> predecessors) {
  if (keys.empty()) return 0;
  auto reserved = tier_.reserve(keys);
  if (!reserved.ok()) {
    const std::size_t room = reserved.otherwise().num_available;
    if (room == 0) return 0;
    blocks = blocks.first(room);
    reserved = tier_.reserve(keys.first(room));
  }
  plan.stores.push_back(stores_.plan(next_transfer(), owner, readiness, blocks,
                                     std::move(reserved).value().hand_over(), predecessors));
  return static_cast<std::uint32_t>(blocks.size());
}

}  // namespace kvferry::connector
