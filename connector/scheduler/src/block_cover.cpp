// SPDX-License-Identifier: Apache-2.0
// How BlockProver records what the engine says about a request's turns.
#include "block_prover.hpp"

#include <algorithm>
#include <utility>

namespace kvferry::connector {

void BlockProver::note_local(const Request& request, std::uint32_t num_local_tokens, PlanSeq last) {
  Proof& proof = proofs_.of(request);
  proof.admission = Admission::kLookedUp;
  proof.num_local_tokens = num_local_tokens;
  proof.looked_up_after = last;
  proof.is_lookup_void = false;
}

void BlockProver::note_state(const Request& request, const LeftState& state) {
  Proof& proof = proofs_.of(request);
  forget_states(proof, {&state.block, 1});
  proof.states.push_back(state);
  doubt(request);
}

void BlockProver::forget_states(Proof& proof, std::span<const BlockId> blocks) {
  if (proof.states.empty()) return;
  std::erase_if(proof.states, [&blocks](const LeftState& state) {
    return std::find(blocks.begin(), blocks.end(), state.block) != blocks.end();
  });
}

void BlockProver::note_known(const Request& request, std::uint32_t num_tokens) {
  if (num_tokens == 0) return;
  Proof& proof = proofs_.of(request);
  // A plan computed all tokens that the engine knows, except the last one.
  proof.sure_to = std::max(proof.sure_to, std::min(proof.to, num_tokens - 1));
}

void BlockProver::cover(const Request& request, TableUpdate update, GroupBlocks added,
                        const StepTokens& tokens, PlanSeq last) {
  Proof& proof = proofs_.of(request);
  const std::uint32_t num_computed = tokens.num_computed;
  if (update == TableUpdate::kReplace) {
    cover_table(request, proof, num_computed, last);
  } else {
    cover_added(request, proof, added, tokens);
  }
  proof.num_before = num_computed;
  proof.to = num_computed + tokens.num_scheduled;
  proof.has_drafts |= tokens.num_drafts > 0;
  if (proof.has_drafts) {
    // The engine may still count drafts as computed that were taken back. But tokens that it knows
    // when it makes the plan are computed with the plan, or before.
    const auto num_known =
        static_cast<std::uint32_t>(request.hashes->size()) * groups_.hash_tokens();
    proof.sure_to = std::max(std::min(proof.sure_to, num_computed), std::min(proof.to, num_known));
  } else {
    proof.sure_to = proof.to;
  }
  if (proof.awaited_from != kNone) doubt(request);
}

void BlockProver::cover_table(const Request& request, Proof& proof, std::uint32_t num_computed,
                              PlanSeq last) {
  const std::uint32_t first = admit(request, proof, num_computed, last);
  for (const GroupId group : groups_.ids()) {
    const std::span<const BlockId> table = request.table(group);
    const std::size_t begin =
        std::min<std::size_t>(first / groups_.block_tokens(group), table.size());
    forget_states(proof, table.subspan(begin));
    begin_write(group, table.subspan(begin), request.generation);
  }
}

std::uint32_t BlockProver::admit(const Request& request, Proof& proof, std::uint32_t num_computed,
                                 PlanSeq last) {
  proof.rewritten_to = 0;
  const Admission admission = std::exchange(proof.admission, Admission::kRan);
  if (admission == Admission::kRan) {
    admit_again(request, proof, num_computed);
    return num_computed;
  }
  proof.num_proven = 0;
  proof.states.clear();
  proof.awaited_from = kNone;
  proof.num_trusted = kNone;
  proof.sure_to = 0;
  proof.has_drafts = false;
  proof.state_end = num_computed / groups_.hash_tokens();
  if (admission != Admission::kLookedUp || num_computed <= proof.num_local_tokens) {
    proof.from = first_continued(request, num_computed);
    return num_computed;
  }
  // The block of the next token is a new one, so a proof of its earlier content says nothing.
  proof.from = num_computed;
  // The engine's hit can end within a block of some group. It tells a lookup only the whole hit
  // lengths of that. The rest is as little known as all that it finds.
  if (other_loads_ == OtherLoads::kNone) return num_computed;
  const std::uint32_t whole =
      groups_.align(num_computed / groups_.hash_tokens()) * groups_.hash_tokens();
  if (proof.is_lookup_void || whole <= proof.num_local_tokens) return proof.num_local_tokens;
  // This is another connector's load. The engine looks up and runs a request in one pass only if
  // that load takes place within the step. Otherwise the load has ended, and the engine knows how.
  if (proof.looked_up_after == last) {
    proof.awaited_from = proof.num_local_tokens;
    proof.witness = TransferId();
  } else {
    proof.from = proof.num_local_tokens;
  }
  return proof.num_local_tokens;
}

std::uint32_t BlockProver::first_continued(const Request& request,
                                           std::uint32_t num_computed) const {
  for (const GroupId group : groups_.ids()) {
    if (num_computed % groups_.block_tokens(group) == 0 || groups_.is_told(group)) continue;
    const std::uint32_t at = num_computed / groups_.block_tokens(group);
    const std::span<const BlockId> table = request.table(group);
    const std::span<const cpu_tier::BlockKey> keys = request.keys_of(group);
    if (at >= std::min(table.size(), keys.size())) return num_computed;
    if (!proven_.holds(table[at], keys[at])) return num_computed;
  }
  return groups_.align(num_computed / groups_.hash_tokens()) * groups_.hash_tokens();
}

void BlockProver::admit_again(const Request& request, Proof& proof, std::uint32_t num_computed) {
  // A session continues. Its last block is still its own, or nothing is known about the block's
  // head.
  bool is_its = proof.from <= num_computed && num_computed <= proof.to;
  for (const GroupId group : groups_.ids()) {
    if (!is_its) break;
    if (num_computed % groups_.block_tokens(group) == 0 || groups_.is_told(group)) continue;
    const std::span<const BlockId> table = request.table(group);
    const std::uint32_t at = num_computed / groups_.block_tokens(group);
    is_its = at < table.size() && proven_.is_written_by(table[at], request.generation);
  }
  if (!is_its) proof.from = num_computed;
  if (later_turns_ == LaterTurns::kNotStored) proof.num_trusted = 0;
  proof.num_proven = std::min(proof.num_proven, num_computed / groups_.hash_tokens());
}

namespace {

/// What a step adds to a group's table.
std::span<const BlockId> added_to(GroupId group, GroupBlocks added) {
  return added.empty() ? std::span<const BlockId>() : added[group.value()];
}

/// The number of blocks that were in a group's table before a step added some.
std::size_t num_old(const Request& request, GroupBlocks added, GroupId group) {
  return request.table(group).size() - added_to(group, added).size();
}

}  // namespace

void BlockProver::cover_added(const Request& request, Proof& proof, GroupBlocks added,
                              const StepTokens& tokens) {
  const std::uint32_t num_computed = tokens.num_computed;
  // Blocks of known tokens may be shared with other requests. Blocks of drafts are the request's
  // alone.
  if (num_computed < proof.sure_to) proof.rewritten_to = proof.to;
  if (num_computed < proof.rewritten_to) {
    void_shared(request, added, num_computed, num_computed + tokens.num_scheduled);
  }
  if (num_computed < proof.to) {  // Drafts were taken back.
    proof.num_proven = std::min(proof.num_proven, num_computed / groups_.hash_tokens());
    for (const GroupId group : groups_.ids()) {
      if (groups_.is_told(group)) continue;
      const std::size_t end = std::min(blocks_to(group, proof.to), num_old(request, added, group));
      for (std::size_t i = num_computed / groups_.block_tokens(group); i < end; ++i) {
        begin_write(group, request.table(group)[i], request.generation);
      }
    }
  }
  for (const GroupId group : groups_.ids()) {
    forget_states(proof, added_to(group, added));
    begin_write(group, added_to(group, added), request.generation);
  }
  if (num_computed < proof.from || num_computed > proof.to) {
    proof.from = num_computed;
    proof.awaited_from = kNone;
  }
}

void BlockProver::void_shared(const Request& writer, GroupBlocks added, std::uint32_t first,
                              std::uint32_t end) {
  std::unordered_set<BlockId> written;
  for (const GroupId group : groups_.ids()) {
    const std::span<const BlockId> table = writer.table(group);
    const std::size_t last = std::min(blocks_to(group, end), num_old(writer, added, group));
    for (std::size_t i = first / groups_.block_tokens(group); i < last; ++i) {
      if (!groups_.is_null(group, table[i])) written.insert(table[i]);
    }
  }
  requests_.for_each([&](const Request& request) {
    if (&request == &writer) return;
    const auto is_written = [&](BlockId block) { return written.contains(block); };
    const auto has_one = [&](const std::vector<BlockId>& table) {
      return std::any_of(table.begin(), table.end(), is_written);
    };
    if (std::none_of(request.tables.begin(), request.tables.end(), has_one)) return;
    proofs_.of(request).begin_anew();
  });
}

void BlockProver::begin_load(const Request& request, std::uint32_t first, std::uint32_t end) {
  Proof& proof = proofs_.of(request);
  leave_doubt(request, proof);
  proof = {};
  proof.admission = Admission::kOwnLoad;
  proof.load_first = first;
  proof.load_end = end;
  for (const GroupId group : groups_.ids()) {
    const std::span<const BlockId> table = request.table(group);
    const std::size_t begin =
        std::min<std::size_t>(groups_.num_complete(group, first), table.size());
    begin_write(group, table.subspan(begin), Generation());
  }
}

void BlockProver::end_load(const Request& request) {
  const Proof& proof = proofs_.of(request);
  const std::uint32_t loaded_to = std::min(request.num_hashes, proof.load_end);
  for (const GroupId group : groups_.ids()) {
    const std::span<const BlockId> table = request.table(group);
    const std::size_t end =
        std::min<std::size_t>(groups_.num_complete(group, loaded_to), table.size());
    for (std::size_t i = groups_.num_complete(group, proof.load_first); i < end; ++i) {
      if (!groups_.is_null(group, table[i])) proven_.prove(table[i], request.keys_of(group)[i]);
    }
  }
}

void BlockProver::on_preempted(const Request& request) {
  Proof& proof = proofs_.of(request);
  forget_uncomputed(request, proof);
  leave_doubt(request, proof);
  // The engine may have looked it up in the meantime, within the pass that preempted it.
  Proof next;
  next.admission = proof.admission == Admission::kRan ? Admission::kUnknown : proof.admission;
  next.num_local_tokens = proof.num_local_tokens;
  next.looked_up_after = proof.looked_up_after;
  proof = std::move(next);
}

void BlockProver::on_keys_dropped(const Request& request, std::uint32_t left) {
  Proof& proof = proofs_.of(request);
  proof.num_proven = std::min(proof.num_proven, left);
  std::erase_if(proof.states, [&](const LeftState& one) {
    return one.at >= groups_.num_complete(one.group, left);
  });
}

void BlockProver::drop(const Request& request) {
  leave_doubt(request, proofs_.of(request));
  proofs_.drop(request);
}

}  // namespace kvferry::connector
