// SPDX-License-Identifier: Apache-2.0
#include "kvferry/base/error.hpp"
#include "kvferry/connector/wire/step_plan.hpp"
#include "kvferry/cpu_tier/slots/cpu_tier.hpp"

#include "scheduler_impl.hpp"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

namespace kvferry::connector {

std::string SchedulerEngine::Impl::finish_plan() {
  expect_ranks();
  settle_doubt();
  StepPlan plan;
  plan.domain = options_.domain;
  plan.seq = last_seq_ = last_seq_.next();
  patience_.on_plan(plan.seq);
  load_patience_.on_plan();
  if (!first_plan_) first_plan_ = patience_.stamp();
  loads_.plan(plan, patience_, load_patience_);
  plan_witness(plan);
  std::uint32_t limit = ranks_.all_ready() ? stores_.plan_limit() : 0;
  // States come first, but ready stores come before them in a plan: these leave them room.
  const std::uint32_t num_states = std::min(static_cast<std::uint32_t>(states_.size()), limit);
  limit -= num_states;
  plan_backlog(plan, limit);
  limit += num_states;
  for (std::uint32_t i = 0; i < tiers_.num_classes(); ++i) {
    plan_single_blocks(plan, limit, SlabClassId(i), states_);
  }
  for (const Candidate& candidate : candidates_) {
    if (!is_single(candidate)) plan_candidate(plan, limit, candidate);
  }
  for (std::uint32_t i = 0; i < tiers_.num_classes(); ++i) {
    plan_single_blocks(plan, limit, SlabClassId(i), candidates_);
  }
  end_step();
  return encode(plan);
}

void SchedulerEngine::Impl::end_step() {
  candidates_.clear();
  states_.clear();
  for (const BacklogEntry& entry : deferred_) backlog_.push(entry.block, entry.key);
  deferred_.clear();
  in_step_ = false;
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

void SchedulerEngine::Impl::take_backlog(std::uint32_t limit) {
  entries_.clear();
  while (entries_.size() < limit) {
    const std::optional<BacklogEntry> entry = backlog_.pop();
    if (!entry) break;
    if (pool_ == nullptr || !proven_.holds(entry->block, entry->key) ||
        !pool_->holds(entry->block, entry->key)) {
      ++skipped_reallocated_;
      continue;
    }
    cpu_tier::KeyState state{};
    tiers_.of(groups_.class_of(GroupId(entry->key.group))).lookup({&entry->key, 1}, {&state, 1});
    if (!is_absent(state)) continue;
    // Two blocks of the pool can carry one key; the first stands for both.
    if (!seen_.insert(entry->key.mixed()).second) continue;
    entries_.push_back(*entry);
  }
  seen_.clear();
}

void SchedulerEngine::Impl::plan_backlog(StepPlan& plan, std::uint32_t& limit) {
  take_backlog(limit);
  std::size_t num_left = entries_.size();
  bool exhausted = false;
  for (std::uint32_t i = 0; i < tiers_.num_classes() && num_left > 0; ++i) {
    const SlabClassId slab_class(i);
    keys_.clear();
    blocks_.clear();
    for (const BacklogEntry& entry : entries_) {
      if (groups_.class_of(GroupId(entry.key.group)) != slab_class) continue;
      keys_.push_back(entry.key);
      blocks_.push_back(entry.block);
    }
    num_left -= keys_.size();
    const std::uint32_t planned =
        plan_store(plan, transfer_owner(), slab_class, StoreReadiness::kNow, blocks_, keys_, {});
    limit -= planned;
    for (std::size_t at = blocks_.size(); at > planned; --at) {
      backlog_.push_front({blocks_[at - 1], keys_[at - 1]});
    }
    if (planned < blocks_.size()) {
      skipped_exhausted_ += blocks_.size() - planned;
      exhausted = true;
    }
  }
  if (exhausted) limit = 0;
}

void SchedulerEngine::Impl::plan_candidate(StepPlan& plan, std::uint32_t& limit,
                                           const Candidate& candidate) {
  offer(candidate);
  const std::span<const cpu_tier::BlockKey> keys = keys_of(candidate);
  const std::span<const BlockId> blocks = blocks_of(candidate);
  const Owner owner = candidate.request->owner(options_.domain);
  Predecessor predecessor = predecessor_of(candidate);
  if (std::all_of(answers_.begin(), answers_.end(), is_admitted)) {
    return plan_or_defer(plan, limit, owner, class_of(candidate), blocks, keys, {&predecessor, 1});
  }
  keys_.clear();
  blocks_.clear();
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (!is_admitted(answers_[i])) continue;
    if (keys_.empty() && i > 0) predecessor = keys[i - 1];
    keys_.push_back(keys[i]);
    blocks_.push_back(blocks[i]);
  }
  plan_or_defer(plan, limit, owner, class_of(candidate), blocks_, keys_, {&predecessor, 1});
}

void SchedulerEngine::Impl::plan_single_blocks(StepPlan& plan, std::uint32_t& limit,
                                               SlabClassId slab_class,
                                               std::span<const Candidate> candidates) {
  keys_.clear();
  blocks_.clear();
  predecessors_.clear();
  for (const Candidate& candidate : candidates) {
    if (!is_single(candidate) || class_of(candidate) != slab_class) continue;
    offer(candidate);
    if (!is_admitted(answers_.front())) continue;
    const cpu_tier::BlockKey& key = keys_of(candidate).front();
    if (!seen_.insert(key.mixed()).second) continue;
    keys_.push_back(key);
    blocks_.push_back(blocks_of(candidate).front());
    predecessors_.push_back(predecessor_of(candidate));
  }
  seen_.clear();
  plan_or_defer(plan, limit, transfer_owner(), slab_class, blocks_, keys_, predecessors_);
}

void SchedulerEngine::Impl::plan_or_defer(StepPlan& plan, std::uint32_t& limit, Owner owner,
                                          SlabClassId slab_class, std::span<const BlockId> blocks,
                                          std::span<const cpu_tier::BlockKey> keys,
                                          std::span<const Predecessor> predecessors) {
  const std::size_t wanted = std::min<std::size_t>(blocks.size(), limit);
  const std::uint32_t planned = plan_store(plan, owner, slab_class, StoreReadiness::kAfterForward,
                                           blocks.first(wanted), keys.first(wanted), predecessors);
  limit -= planned;
  if (planned < wanted) {
    skipped_exhausted_ += wanted - planned;
    limit = 0;
  }
  if (stores_off()) return;
  for (std::size_t i = planned; i < blocks.size(); ++i) backlog_.push(blocks[i], keys[i]);
}

std::uint32_t SchedulerEngine::Impl::plan_store(StepPlan& plan, Owner owner, SlabClassId slab_class,
                                                StoreReadiness readiness,
                                                std::span<const BlockId> blocks,
                                                std::span<const cpu_tier::BlockKey> keys,
                                                std::span<const Predecessor> predecessors) {
  if (keys.empty()) return 0;
  dcheck_proven(blocks, keys);
  auto reserved = tiers_.reserve(slab_class, keys);
  if (!reserved.ok()) {
    const std::size_t room = reserved.otherwise().num_available;
    if (room == 0) return 0;
    blocks = blocks.first(room);
    reserved = tiers_.reserve(slab_class, keys.first(room));
    if (!reserved.ok()) return 0;  // Of a shared tier others may have taken it by now.
  }
  plan.stores.push_back(stores_.plan(next_transfer(), owner, slab_class, readiness, blocks,
                                     std::move(reserved).value().hand_over(), predecessors,
                                     patience_.stamp()));
  return static_cast<std::uint32_t>(blocks.size());
}

}  // namespace kvferry::connector
