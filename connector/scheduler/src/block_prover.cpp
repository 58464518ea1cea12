// SPDX-License-Identifier: Apache-2.0
#include "block_prover.hpp"

#include <algorithm>
#include <utility>

namespace kvferry::connector {

std::uint32_t BlockProver::num_provable(const Request& request, const Proof& proof) const {
  return std::min({request.num_hashes, proof.sure_to / groups_.hash_tokens(), proof.num_trusted,
                   request.table_end(groups_)});
}

std::uint32_t BlockProver::prove(const Request& request) {
  Proof& proof = proofs_.of(request);
  const std::uint32_t end = num_provable(request, proof);
  while (proof.num_proven < end && prove_at(request, proof, proof.num_proven)) ++proof.num_proven;
  return proof.num_proven;
}

bool BlockProver::is_idle_at(const Request& request, const Proof& proof, GroupId group,
                             std::uint32_t at) const {
  // Of states, what is found is the last one; what is left is told by note_state().
  if (groups_.has_states(group)) return (at + 1) * groups_.block_length(group) != proof.state_end;
  return groups_.is_null(group, request.table(group)[at]);
}

bool BlockProver::is_half_found(const Proof& proof, GroupId group, std::uint32_t position) const {
  if (groups_.has_states(group)) return position + 1 == proof.state_end;
  const std::uint64_t begin =
      std::uint64_t{groups_.num_complete(group, position)} * groups_.block_tokens(group);
  return begin < proof.from && std::uint64_t{position} * groups_.hash_tokens() >= proof.from;
}

bool BlockProver::prove_at(const Request& request, const Proof& proof, std::uint32_t position) {
  const auto is_covered = [&](GroupId group, std::uint32_t at) {
    return std::uint64_t{at} * groups_.block_tokens(group) >= proof.from;
  };
  const auto is_its = [&](GroupId group, std::uint32_t at) {
    return is_covered(group, at) &&
           proven_.is_written_by(request.table(group)[at], request.generation);
  };
  for (const GroupId group : groups_.ids()) {
    const std::uint32_t at = groups_.num_complete(group, position);
    if (!groups_.ends_with(group, position)) {
      if (is_half_found(proof, group, position)) return false;
      continue;
    }
    if (is_idle_at(request, proof, group, at)) continue;
    if (is_its(group, at)) continue;
    if (proven_.holds(request.table(group)[at], request.keys_of(group)[at])) continue;
    // It was right when those after it were computed, and slid out of the window since.
    const bool slid = is_covered(group, at) && !groups_.needs_all(group) &&
                      at < groups_.first_kept(group, proof.to);
    if (!slid) return false;
  }
  for (const GroupId group : groups_.ids()) {
    const std::uint32_t at = groups_.num_complete(group, position);
    if (!groups_.ends_with(group, position) || is_idle_at(request, proof, group, at)) continue;
    if (!is_its(group, at)) continue;
    proven_.prove(request.table(group)[at], request.keys_of(group)[at]);
  }
  return true;
}

std::vector<LeftState> BlockProver::take_proven_states(const Request& request) {
  Proof& proof = proofs_.of(request);
  std::vector<LeftState> taken;
  std::erase_if(proof.states, [&](const LeftState& state) {
    if ((state.at + 1) * groups_.block_length(state.group) > proof.num_proven) return false;
    if (proven_.is_written_by(state.block, request.generation)) {
      proven_.prove(state.block, request.keys_of(state.group)[state.at]);
      taken.push_back(state);
    }
    return true;
  });
  return taken;
}

void BlockProver::doubt(const Request& request) {
  if (std::exchange(proofs_.of(request).is_in_doubt, true)) return;
  in_doubt_.push_back(&request);
}

void BlockProver::leave_doubt(const Request& request, Proof& proof) {
  if (std::exchange(proof.is_in_doubt, false)) std::erase(in_doubt_, &request);
}

bool BlockProver::waits(const Request& request, const Proof& proof) const {
  return proof.awaited_from != kNone || proof.num_proven < num_provable(request, proof) ||
         (!proof.states.empty() && proof.num_trusted == kNone);
}

bool BlockProver::needs_witness() const {
  return std::any_of(in_doubt_.begin(), in_doubt_.end(), [this](const Request* request) {
    const Proof& proof = proofs_.of(*request);
    return proof.awaited_from != kNone && proof.witness == TransferId();
  });
}

void BlockProver::set_witness(TransferId witness) {
  for (const Request* request : in_doubt_) {
    Proof& proof = proofs_.of(*request);
    if (proof.awaited_from != kNone && proof.witness == TransferId()) proof.witness = witness;
  }
}

void BlockProver::hear(std::span<const TransferId> witnesses) {
  for (const Request* request : in_doubt_) {
    Proof& proof = proofs_.of(*request);
    if (proof.awaited_from == kNone ||
        std::find(witnesses.begin(), witnesses.end(), proof.witness) == witnesses.end()) {
      continue;
    }
    proof.from = std::exchange(proof.awaited_from, kNone);
  }
}

std::optional<std::uint32_t> BlockProver::find_first(
    const Request& request, const std::unordered_set<BlockId>& blocks) const {
  std::optional<std::uint32_t> first;
  for (const GroupId group : groups_.ids()) {
    const std::span<const BlockId> table = request.table(group);
    const std::size_t end = std::min<std::size_t>(
        table.size(), proofs_.of(request).to / groups_.block_tokens(group) + 1);
    const auto found = std::find_if(table.begin(), table.begin() + static_cast<std::ptrdiff_t>(end),
                                    [&](BlockId block) { return blocks.contains(block); });
    const auto at = static_cast<std::uint32_t>(found - table.begin());
    if (at >= end) continue;
    const std::uint32_t position = at * groups_.block_length(group);
    first = std::min(first.value_or(position), position);
  }
  return first;
}

std::vector<BlockId> BlockProver::take_back(const Request& request, std::uint32_t first) {
  Proof& proof = proofs_.of(request);
  std::vector<BlockId> its;
  for (const GroupId group : groups_.ids()) {
    const std::span<const BlockId> table = request.table(group);
    for (std::size_t i = groups_.num_complete(group, first); i < table.size(); ++i) {
      if (proven_.is_written_by(table[i], request.generation)) its.push_back(table[i]);
    }
  }
  proof.num_proven = std::min(proof.num_proven, first);
  proof.begin_anew();
  return its;
}

void BlockProver::distrust_new_keys(const Request& request) {
  Proof& proof = proofs_.of(request);
  proof.num_trusted = std::min(proof.num_trusted, request.num_hashes);
}

void BlockProver::forget_all(const BlockPool* pool) {
  for (const Request* request : in_doubt_) proofs_.of(*request).is_in_doubt = false;
  in_doubt_.clear();
  // What the engine's own cache still has it goes on to serve: it is not of other weights.
  proven_.keep_if([pool](BlockId block, std::uint64_t mark) {
    const auto key = pool == nullptr ? std::nullopt : pool->key(block);
    return key && ProvenBlocks::mark_of(*key) == mark;
  });
  requests_.for_each([this](const Request& request) {
    Proof& proof = proofs_.of(request);
    proof.num_proven = 0;
    proof.begin_anew();
  });
}

void BlockProver::forget_uncomputed(const Request& request, const Proof& proof) {
  std::unordered_set<std::uint64_t> marks;
  for (const GroupId group : groups_.ids()) {
    const std::span<const cpu_tier::BlockKey> keys = request.keys_of(group);
    for (std::size_t i = proof.sure_to / groups_.block_tokens(group); i < keys.size(); ++i) {
      marks.insert(ProvenBlocks::mark_of(keys[i]));
    }
  }
  if (marks.empty()) return;
  proven_.keep_if([&](BlockId /*block*/, std::uint64_t mark) { return !marks.contains(mark); });
}

}  // namespace kvferry::connector
