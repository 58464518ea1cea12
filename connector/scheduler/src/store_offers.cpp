// SPDX-License-Identifier: Apache-2.0
// What the tier's policy is told about requests, and what follows from its answers.
#include "store_planner.hpp"

#include <algorithm>

namespace kvferry::connector {

using cpu_tier::BlockKey;
using cpu_tier::KeyState;
using cpu_tier::OfferAnswer;

void StorePlanner::offer_step(const Request& request, TableUpdate update,
                              const StepTokens& tokens) {
  Offers& offers = offers_.of(request);
  const std::uint32_t first_written = tokens.num_computed / groups_.hash_tokens();
  const std::uint32_t complete =
      (tokens.num_computed + tokens.num_scheduled) / groups_.hash_tokens();
  // Blocks that are computed again (after a failed load or a roll-back) are offered again.
  const std::uint32_t first = std::min(offers.num_offered, first_written);
  const std::uint32_t end = std::min({complete, request.num_hashes, request.table_end(groups_)});
  // This step writes these blocks, possibly under a key that the backlog has for them: a gather at
  // the bind would read the old content.
  for (const GroupId group : groups_.ids()) {
    if (backlog_.size() == 0) break;
    const std::uint32_t last = groups_.num_complete(group, end);
    for (std::uint32_t i = groups_.num_complete(group, first_written); i < last; ++i) {
      drop_rewritten(request.table(group)[i]);
    }
  }
  offers.num_offered = first;
  if (first <= offers.store_end) offers.store_end = kNoEnd;
  if (!offers.storable || first >= end) return;
  for (const GroupId group : groups_.ids()) {
    // Later the engine moves blocks within a table.
    if (update == TableUpdate::kReplace && groups_.is_told(group)) {
      const std::uint32_t found_to = std::min({first_written, end, request.store_limit});
      defer_found_states(request, group, groups_.num_complete(group, first),
                         groups_.num_complete(group, found_to));
    }
  }
  offer_proven(request, OfferTo::kStep);
  if (prover_.num_proven(request) < end) prover_.doubt(request);
}

void StorePlanner::mark_retained(const Request& request, GroupId group, BlockGroups::Range blocks,
                                 std::vector<std::uint8_t>& retained) const {
  retained.assign(blocks.size(), groups_.needs_all(group) ? 1 : 0);
  if (groups_.needs_all(group)) return;
  const std::span<const BlockId> table = request.table(group).subspan(blocks.first, blocks.size());
  const auto keep = [&](BlockGroups::Range part) {
    const std::uint32_t last = std::min(part.last, blocks.last);
    for (std::uint32_t at = std::max(part.first, blocks.first); at < last; ++at) {
      // A block that only stands for one that slid out of a window is used by no request.
      if (!groups_.is_null(group, table[at - blocks.first])) retained[at - blocks.first] = 1;
    }
  };
  if (retention_.rule == Retention::Rule::kDense) return keep(blocks);
  if (pool_ != nullptr) {
    pool_->mark_held(table, request.keys_of(group).subspan(blocks.first, blocks.size()), retained);
  }
  if (const std::uint32_t unseen = groups_.num_unseen(group); unseen > 0) {
    for (std::uint32_t at = blocks.first; at < blocks.last; ++at) {
      if (retained[at - blocks.first] == 1) keep({at - std::min(at, unseen), at});
    }
  }
  // The engine knows the shared prefixes that it has itself. Most shared prefixes are only in the
  // tier.
  keep(groups_.needed(group, 0, offers_.of(request).junction));
  // Loads of a request end where the request wants its last block stored.
  const std::uint32_t most = request.limits.max_store / groups_.hash_tokens();
  if (most == request.store_limit) keep(groups_.needed(group, 0, groups_.align(most)));
  const std::uint32_t interval = retention_.interval_tokens / groups_.hash_tokens();
  if (interval != 0) groups_.for_each_interval(group, blocks, interval, keep);
}

void StorePlanner::offer_group(const Request& request, GroupId group, BlockGroups::Range blocks,
                               std::uint32_t first_kept) {
  // Most entries of a prefix that was found stand for no block any more.
  const std::span<const BlockId> table = request.table(group);
  while (blocks.first < blocks.last && groups_.is_null(group, table[blocks.first])) ++blocks.first;
  std::vector<std::uint8_t>& retained = buffer_.retained;
  mark_retained(request, group, blocks, retained);
  for (std::uint32_t at = blocks.first; at < blocks.last;) {
    const std::uint32_t end = at < first_kept ? std::min(first_kept, blocks.last) : blocks.last;
    const auto last = retained.begin() + (end - blocks.first);
    const auto begin = std::find(retained.begin() + (at - blocks.first), last, 1);
    const auto after = std::find(begin, last, 0);
    const Candidate run{&request, group,
                        blocks.first + static_cast<std::uint32_t>(begin - retained.begin()),
                        blocks.first + static_cast<std::uint32_t>(after - retained.begin())};
    at = run.last;
    if (run.first == run.last) continue;
    if (run.first < first_kept) {
      defer(run, buffer_);
    } else {
      candidates_.push_back(run);
    }
  }
}

std::span<const OfferAnswer> StorePlanner::offer(const Candidate& candidate, Buffer& buffer) {
  Offers& offers = offers_.of(*candidate.request);
  const std::span<const BlockId> blocks = candidate.blocks();
  buffer.answers.resize(blocks.size());
  tier_.offer(groups_.class_of(candidate.group), candidate.keys(), buffer.answers);
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    OfferAnswer& answer = buffer.answers[i];
    if (answer == OfferAnswer::kHeld) continue;
    if (groups_.is_null(candidate.group, blocks[i])) {
      answer = OfferAnswer::kHeld;  // There is nothing to store.
      continue;
    }
    const std::uint32_t at =
        (candidate.first + static_cast<std::uint32_t>(i)) * groups_.block_length(candidate.group);
    // Only loads that end near a block of a window or chunk need it.
    const bool ends = answer != OfferAnswer::kStore && groups_.needs_all(candidate.group);
    if (ends) offers.store_end = std::min(offers.store_end, at);
    if (answer == OfferAnswer::kStore && at < offers.store_end) continue;
    answer = OfferAnswer::kDeclined;
    ++num_declined_;
    note(recorder::Skip::kDeclined, candidate.request->id, candidate.keys().subspan(i, 1));
  }
  return buffer.answers;
}

void StorePlanner::defer(const Candidate& candidate, Buffer& buffer) {
  if (stores_.is_off() || candidate.first >= candidate.last) return;
  const std::span<const OfferAnswer> answers = offer(candidate, buffer);
  const std::span<const BlockId> blocks = candidate.blocks();
  const std::span<const cpu_tier::BlockKey> keys = candidate.keys();
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (answers[i] != OfferAnswer::kStore || !prover_.holds(blocks[i], keys[i])) continue;
    note(recorder::Skip::kDeferred, candidate.request->id, keys.subspan(i, 1));
    if (step_) {
      deferred_.push_back({blocks[i], keys[i]});
    } else {
      backlog_.push(blocks[i], keys[i]);
    }
  }
}

void StorePlanner::defer_found_states(const Request& request, GroupId group, std::uint32_t first,
                                      std::uint32_t last) {
  for (std::uint32_t at = first; at < last; ++at) {
    if (!groups_.is_null(group, request.table(group)[at])) {
      defer({&request, group, at, at + 1}, buffer_);
    }
  }
}

void StorePlanner::offer_rest(const Request& request) { offer_proven(request, OfferTo::kBacklog); }

void StorePlanner::offer_proven(const Request& request, OfferTo where) {
  const std::uint32_t num_proven = prover_.prove(request);
  const std::uint32_t end = std::min(num_proven, request.store_limit);
  if (end < num_proven) count_unwanted(request, num_proven);
  offer_states(request, where);
  Offers& offers = offers_.of(request);
  const std::uint32_t first = offers.num_offered;
  if (first >= end) return;
  offers.num_offered = end;
  for (const GroupId group : groups_.ids()) {
    if (groups_.is_told(group)) continue;  // The engine says where they are.
    // A window's blocks serve loads that end with them or soon after, and loads end where a block
    // of every group does. The engine caches them there, too.
    const bool waits = !groups_.needs_all(group);
    std::uint32_t begin = groups_.num_complete(group, waits ? groups_.align(first) : first);
    // Blocks that were not retained may be needed together with retained ones.
    begin -= std::min(begin, groups_.num_unseen(group));
    const std::uint32_t last = groups_.num_complete(group, waits ? groups_.align(end) : end);
    if (begin >= last) continue;
    const bool is_in_step = where == OfferTo::kStep;
    offer_group(request, group, {begin, last},
                is_in_step ? groups_.first_kept(group, offers.num_computed) : last);
  }
}

void StorePlanner::count_unwanted(const Request& request, std::uint32_t end) {
  Offers& offers = offers_.of(request);
  const std::uint32_t first = std::max(offers.num_counted, request.store_limit);
  offers.num_counted = std::max(offers.num_counted, end);
  for (const GroupId group : groups_.ids()) {
    // Only some blocks of windows and states are stored. Which ones is not decided here.
    if (!groups_.needs_all(group)) continue;
    const std::span<const BlockKey> keys = request.keys_of(group);
    const std::uint32_t last = groups_.num_complete(group, end);
    for (std::uint32_t at = groups_.num_complete(group, first); at < last; ++at) {
      KeyState state{};
      tier_.lookup(groups_.class_of(group), keys.subspan(at, 1), {&state, 1});
      if (state != KeyState::kAbsent) continue;
      ++num_unwanted_;
      note(recorder::Skip::kUnwanted, request.id, keys.subspan(at, 1));
    }
  }
}

void StorePlanner::offer_states(const Request& request, OfferTo where) {
  for (const LeftState& state : prover_.take_proven_states(request)) {
    if (state.at >= groups_.num_complete(state.group, request.store_limit)) continue;
    const Candidate candidate{&request, state.group, state.at, state.at + 1};
    if (where == OfferTo::kStep && groups_.settles_in_step(state.group)) {
      states_.push_back(candidate);
    } else {
      defer(candidate, buffer_);
    }
  }
}

void StorePlanner::offer_newly_proven() {
  // A request may come before the request whose blocks it found, so this repeats.
  for (bool again = !prover_.in_doubt().empty(); again;) {
    again = false;
    for (const Request* request : prover_.in_doubt()) {
      const std::uint32_t before = prover_.num_proven(*request);
      const auto where = is_in_step(*request) ? OfferTo::kStep : OfferTo::kBacklog;
      if (is_storable(*request)) offer_proven(*request, where);
      again |= prover_.num_proven(*request) > before;
    }
  }
  prover_.settle_doubt([this](const Request& request) { return is_storable(request); });
}

void StorePlanner::offer_again(const Request& request, std::uint32_t first) {
  Offers& offers = offers_.of(request);
  offers.num_offered = std::min(offers.num_offered, first);
}

void StorePlanner::on_preempted(const Request& request) {
  Offers& offers = offers_.of(request);
  offers.num_offered = 0;
  offers.storable = true;
}

void StorePlanner::drop(const Request& request) {
  const auto is_its = [&request](const Candidate& one) { return one.request == &request; };
  std::erase_if(candidates_, is_its);
  std::erase_if(states_, is_its);
  offers_.drop(request);
}

void StorePlanner::forget(std::span<const BlockId> blocks) {
  for (const BlockId block : blocks) {
    drop_rewritten(block);
    std::erase_if(deferred_, [block](const BacklogEntry& entry) { return entry.block == block; });
  }
}

void StorePlanner::forget_all(RequestTable& requests) {
  backlog_.clear();
  deferred_.clear();
  candidates_.clear();
  states_.clear();
  requests.for_each([this](const Request& request) {
    // The request's blocks in the pool were computed before the reset and must not come back.
    if (request.has_blocks()) offers_.of(request).storable = false;
  });
}

}  // namespace kvferry::connector
