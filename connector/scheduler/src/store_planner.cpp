// SPDX-License-Identifier: Apache-2.0
#include "store_planner.hpp"

#include "kvferry/base/check.hpp"

#include <algorithm>
#include <string>
#include <utility>

namespace kvferry::connector {

using cpu_tier::BlockKey;
using cpu_tier::KeyState;
using cpu_tier::OfferAnswer;

std::vector<StoreOrder> StorePlanner::plan(RankPatience::Stamp stamp) {
  Draft draft{{}, stores_.plan_limit(), stamp};
  plan_witness(draft);
  // A plan lists ready stores first (StepPlan::stores), so the backlog is planned before the
  // states. But states have the first claim on the room: the backlog gets what they leave.
  std::uint64_t of_states = 0;
  for (const Candidate& state : states_) {
    of_states += stores_.block_bytes(groups_.class_of(state.group));
  }
  of_states = std::min(of_states, draft.room);
  draft.room -= of_states;
  plan_backlog(draft, buffer_);
  draft.room += of_states;
  const std::uint32_t num_classes = tier_.num_classes();
  for (std::uint32_t i = 0; i < num_classes; ++i) {
    plan_single_blocks(draft, SlabClassId(i), states_, buffer_);
  }
  for (const Candidate& candidate : candidates_) {
    if (!candidate.is_single()) plan_candidate(draft, candidate, buffer_);
  }
  for (std::uint32_t i = 0; i < num_classes; ++i) {
    plan_single_blocks(draft, SlabClassId(i), candidates_, buffer_);
  }
  return std::move(draft.orders);
}

void StorePlanner::end_step() {
  candidates_.clear();
  states_.clear();
  for (const BacklogEntry& entry : deferred_) backlog_.push(entry.block, entry.key);
  deferred_.clear();
  step_.reset();
}

void StorePlanner::plan_witness(Draft& draft) {
  if (!stores_.is_on() || !prover_.needs_witness()) return;
  const TransferId witness = transfers_.next();
  const Owner owner{domain_, RequestId(), Generation(witness.value())};
  draft.orders.push_back(stores_.plan_witness(witness, owner, draft.stamp));
  prover_.set_witness(witness);
}

std::vector<BacklogEntry> StorePlanner::take_backlog(std::uint64_t room, Buffer& buffer) {
  std::vector<BacklogEntry> taken;
  while (room > 0) {
    const std::optional<BacklogEntry> entry = backlog_.pop();
    if (!entry) break;
    if (pool_ == nullptr || !prover_.holds(entry->block, entry->key) ||
        !pool_->holds(entry->block, entry->key)) {
      ++num_reallocated_;
      note(recorder::Skip::kReallocated, RequestId(), {&entry->key, 1});
      continue;
    }
    const SlabClassId slab_class = groups_.class_of(GroupId(entry->key.group));
    KeyState state{};
    tier_.lookup(slab_class, {&entry->key, 1}, {&state, 1});
    if (state != KeyState::kAbsent) continue;
    // Two blocks of the pool can carry one key. The first one stands for both.
    if (buffer.seen.contains(entry->key.mixed())) continue;
    if (stores_.block_bytes(slab_class) > room) {
      backlog_.push_front(*entry);
      break;
    }
    room -= stores_.block_bytes(slab_class);
    buffer.seen.insert(entry->key.mixed());
    taken.push_back(*entry);
  }
  buffer.seen.clear();
  return taken;
}

void StorePlanner::plan_backlog(Draft& draft, Buffer& buffer) {
  const std::vector<BacklogEntry> entries = take_backlog(draft.room, buffer);
  std::size_t num_left = entries.size();
  bool exhausted = false;
  const std::uint32_t num_classes = tier_.num_classes();
  for (std::uint32_t i = 0; i < num_classes && num_left > 0; ++i) {
    const SlabClassId slab_class(i);
    std::vector<BlockKey>& keys = buffer.keys;
    std::vector<BlockId>& blocks = buffer.blocks;
    keys.clear();
    blocks.clear();
    for (const BacklogEntry& entry : entries) {
      if (groups_.class_of(GroupId(entry.key.group)) != slab_class) continue;
      keys.push_back(entry.key);
      blocks.push_back(entry.block);
    }
    num_left -= keys.size();
    const std::uint32_t planned =
        plan_store(draft, {slab_class, StoreReadiness::kNow, std::nullopt, blocks, keys, {}});
    draft.room -= planned * stores_.block_bytes(slab_class);
    for (std::size_t at = blocks.size(); at > planned; --at) {
      backlog_.push_front({blocks[at - 1], keys[at - 1]});
    }
    if (planned < blocks.size()) {
      num_exhausted_ += blocks.size() - planned;
      note(recorder::Skip::kExhausted, RequestId(), std::span(keys).subspan(planned));
      exhausted = true;
    }
  }
  if (exhausted) draft.room = 0;
}

void StorePlanner::plan_candidate(Draft& draft, const Candidate& candidate, Buffer& buffer) {
  const std::span<const OfferAnswer> answers = offer(candidate, buffer);
  const std::span<const BlockKey> keys = candidate.keys();
  const std::span<const BlockId> blocks = candidate.blocks();
  Predecessor predecessor = candidate.predecessor();
  Wish wish{groups_.class_of(candidate.group),
            StoreReadiness::kAfterForward,
            candidate.request->owner(domain_),
            blocks,
            keys,
            {&predecessor, 1}};
  const auto is_admitted = [](OfferAnswer answer) { return answer == OfferAnswer::kStore; };
  if (!std::all_of(answers.begin(), answers.end(), is_admitted)) {
    buffer.keys.clear();
    buffer.blocks.clear();
    for (std::size_t i = 0; i < keys.size(); ++i) {
      if (!is_admitted(answers[i])) continue;
      if (buffer.keys.empty() && i > 0) predecessor = keys[i - 1];
      buffer.keys.push_back(keys[i]);
      buffer.blocks.push_back(blocks[i]);
    }
    wish.keys = buffer.keys;
    wish.blocks = buffer.blocks;
  }
  plan_or_defer(draft, wish);
}

void StorePlanner::plan_single_blocks(Draft& draft, SlabClassId slab_class,
                                      std::span<const Candidate> candidates, Buffer& buffer) {
  buffer.keys.clear();
  buffer.blocks.clear();
  buffer.predecessors.clear();
  for (const Candidate& candidate : candidates) {
    if (!candidate.is_single() || groups_.class_of(candidate.group) != slab_class) continue;
    if (offer(candidate, buffer).front() != OfferAnswer::kStore) continue;
    const BlockKey& key = candidate.keys().front();
    if (!buffer.seen.insert(key.mixed()).second) continue;
    buffer.keys.push_back(key);
    buffer.blocks.push_back(candidate.blocks().front());
    buffer.predecessors.push_back(candidate.predecessor());
  }
  buffer.seen.clear();
  plan_or_defer(draft, {slab_class, StoreReadiness::kAfterForward, std::nullopt, buffer.blocks,
                        buffer.keys, buffer.predecessors});
}

void StorePlanner::plan_or_defer(Draft& draft, const Wish& wish) {
  if (wish.blocks.empty()) return;
  const std::uint64_t block_bytes = stores_.block_bytes(wish.slab_class);
  const std::size_t wanted = std::min<std::uint64_t>(wish.blocks.size(), draft.room / block_bytes);
  Wish fitting = wish;
  fitting.blocks = wish.blocks.first(wanted);
  fitting.keys = wish.keys.first(wanted);
  const std::uint32_t planned = plan_store(draft, fitting);
  draft.room -= planned * block_bytes;
  const RequestId request = wish.owner ? wish.owner->request : RequestId();
  if (planned < wanted) {
    num_exhausted_ += wanted - planned;
    note(recorder::Skip::kExhausted, request, wish.keys.subspan(planned, wanted - planned));
    draft.room = 0;
  }
  note(recorder::Skip::kDeferred, request, wish.keys.subspan(wanted));
  if (stores_.is_off()) return;
  for (std::size_t i = planned; i < wish.blocks.size(); ++i) {
    backlog_.push(wish.blocks[i], wish.keys[i]);
  }
}

std::uint32_t StorePlanner::plan_store(Draft& draft, const Wish& wish) {
  if (wish.keys.empty()) return 0;
  dcheck_proven(wish);
  std::span<const BlockId> blocks = wish.blocks;
  auto reserved = tier_.reserve(wish.slab_class, wish.keys);
  if (!reserved.ok()) {
    const std::size_t room = reserved.otherwise().num_available;
    if (room == 0) return 0;
    blocks = blocks.first(room);
    reserved = tier_.reserve(wish.slab_class, wish.keys.first(room));
    if (!reserved.ok()) return 0;  // Peers may have taken the room by now.
  }
  const TransferId transfer = transfers_.next();
  const Owner owner =
      wish.owner.value_or(Owner{domain_, RequestId(), Generation(transfer.value())});
  draft.orders.push_back(stores_.plan(
      transfer, owner, wish.slab_class, wish.readiness, blocks, wish.keys.first(blocks.size()),
      std::move(reserved).value().hand_over(), wish.predecessors, draft.stamp));
  return static_cast<std::uint32_t>(blocks.size());
}

void StorePlanner::dcheck_proven(const Wish& wish) const {
#ifndef NDEBUG
  for (std::size_t i = 0; i < wish.blocks.size(); ++i) {
    KVFERRY_CHECK(prover_.holds(wish.blocks[i], wish.keys[i]),
                  "block " + std::to_string(wish.blocks[i].value()) +
                      " is to be stored, but nothing proves what it holds");
  }
#else
  static_cast<void>(wish);
#endif
}

}  // namespace kvferry::connector
