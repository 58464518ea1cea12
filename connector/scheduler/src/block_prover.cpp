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
  std::uint32_t end = num_provable(request, proof);
  if (proof.num_proven >= end) return proof.num_proven;
  for (const GroupId group : groups_.ids()) {
    end = groups_.is_told(group) ? end_by_state(request, proof, group, end)
                                 : end_by_blocks(request, proof, group, end);
  }
  for (const GroupId group : groups_.ids()) prove_computed(request, proof, group, end);
  return proof.num_proven = end;
}

std::uint32_t BlockProver::end_by_state(const Request& request, const Proof& proof, GroupId group,
                                        std::uint32_t end) const {
  // A request finds only its last state in the cache. note_state() reports the states that it
  // leaves.
  if (proof.state_end <= proof.num_proven || proof.state_end > end) return end;
  const std::uint32_t position = proof.state_end - 1;
  const bool is_right = groups_.ends_with(group, position) &&
                        is_right_at(request, proof, group, groups_.num_complete(group, position));
  return is_right ? end : position;
}

std::uint32_t BlockProver::end_by_blocks(const Request& request, const Proof& proof, GroupId group,
                                         std::uint32_t end) const {
  end = std::min(end, half_found_from(proof, group));
  const std::span<const BlockId> table = request.table(group);
  const std::uint32_t first_covered = first_covered_of(proof, group);
  const std::uint32_t last = groups_.num_complete(group, end);
  for (std::uint32_t at = groups_.num_complete(group, proof.num_proven); at < last; ++at) {
    // Most of these blocks were just computed by a step.
    if (at >= first_covered) {
      at += proven_.num_written_by(table.subspan(at, last - at), request.generation);
      if (at == last) break;
    }
    if (groups_.is_null(group, table[at]) || is_right_at(request, proof, group, at)) continue;
    return (at + 1) * groups_.block_length(group) - 1;
  }
  return end;
}

std::uint32_t BlockProver::half_found_from(const Proof& proof, GroupId group) const {
  const std::uint32_t hash_tokens = groups_.hash_tokens();
  const std::uint32_t position =
      std::max(proof.num_proven, (proof.from + hash_tokens - 1) / hash_tokens);
  const std::uint64_t begin =
      std::uint64_t{groups_.num_complete(group, position)} * groups_.block_tokens(group);
  return begin < proof.from && !groups_.ends_with(group, position) ? position : kNone;
}

bool BlockProver::is_right_at(const Request& request, const Proof& proof, GroupId group,
                              std::uint32_t at) const {
  const BlockId block = request.table(group)[at];
  if (proven_.holds(block, request.keys_of(group)[at])) return true;
  if (at < first_covered_of(proof, group)) return false;
  if (proven_.is_written_by(block, request.generation)) return true;
  // The block was right when the later ones were computed, and slid out of the window since then. A
  // block that only the last plan's tokens do not see is still the request's.
  return !groups_.needs_all(group) && at < groups_.first_kept(group, proof.num_before);
}

void BlockProver::prove_computed(const Request& request, const Proof& proof, GroupId group,
                                 std::uint32_t end) {
  std::uint32_t first = groups_.num_complete(group, proof.num_proven);
  std::uint32_t last = groups_.num_complete(group, end);
  if (groups_.is_told(group)) {
    if (proof.state_end == 0 || !groups_.ends_with(group, proof.state_end - 1)) return;
    const std::uint32_t state = groups_.num_complete(group, proof.state_end);
    first = std::max(first, state - 1);
    last = std::min(last, state);
  }
  first = std::max(first, first_covered_of(proof, group));
  if (first >= last) return;
  proven_.prove_written_by(request.table(group).subspan(first, last - first),
                           request.keys_of(group).subspan(first, last - first), request.generation);
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
  // The engine continues to serve what is in its own cache, so these blocks are not of other
  // weights.
  proven_.keep_if([pool](BlockId block, std::uint64_t mark) {
    const auto key = pool == nullptr ? std::nullopt : pool->key(block);
    return key && ProvenBlocks::mark_of(*key) == mark;
  });
  requests_.for_each([this](const Request& request) {
    Proof& proof = proofs_.of(request);
    proof.num_proven = 0;
    proof.is_lookup_void = true;
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
