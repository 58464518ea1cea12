// SPDX-License-Identifier: Apache-2.0
// Which of the engine's blocks are known to hold what their keys say.
#include "kvferry/base/check.hpp"
#include "kvferry/base/error.hpp"

#include "scheduler_impl.hpp"

#include <algorithm>
#include <unordered_set>

namespace kvferry::connector {

void SchedulerEngine::Impl::note_local(std::string_view engine_id, std::uint32_t num_local_tokens) {
  Request* request = requests_.find(engine_id);
  if (request == nullptr || request->state != RequestState::kIdle) return;
  request->proof.admission = Admission::kLookedUp;
  request->proof.num_local_tokens = num_local_tokens;
  request->proof.looked_up_behind = last_seq_;
}

std::uint32_t SchedulerEngine::Impl::admit(Request& request, std::uint32_t num_computed) {
  TokenProof& proof = request.proof;
  proof.rewritten_to = 0;
  const std::uint32_t block_tokens = options_.block_tokens;
  const Admission admission = std::exchange(proof.admission, Admission::kRan);
  if (admission == Admission::kRan) {
    // A session goes on. Its last block is its own still, or nothing is known of the block's head.
    bool is_its = proof.from <= num_computed && num_computed <= proof.to;
    const std::uint32_t at = num_computed / block_tokens;
    for (std::size_t group = 0; group < request.tables.size() && is_its; ++group) {
      if (num_computed % block_tokens == 0 || groups_.has_states(group)) continue;
      const auto& table = request.tables[group];
      is_its = at < table.size() && proven_.is_written_by(table[at], request.generation);
    }
    if (!is_its) proof.from = num_computed;
    if (options_.later_turns == LaterTurns::kNotStored) proof.num_trusted = 0;
    request.num_proven = std::min(request.num_proven, at);
    return num_computed;
  }
  request.num_proven = 0;
  request.states_in_doubt.clear();
  proof.awaited_from = TokenProof::kNone;
  proof.num_trusted = TokenProof::kNone;
  proof.sure_to = 0;
  proof.has_drafts = false;
  proof.num_state_blocks = num_computed / block_tokens;
  proof.from = num_computed;
  if (admission != Admission::kLookedUp || num_computed <= proof.num_local_tokens) {
    return num_computed;
  }
  // Another connector's load. The engine looks up and runs a request in one pass only if that load
  // takes place within the step; else the load has ended, and the engine has seen how.
  if (proof.looked_up_behind == last_seq_) {
    proof.awaited_from = proof.num_local_tokens;
    proof.witness = TransferId();
  } else {
    proof.from = proof.num_local_tokens;
  }
  return proof.num_local_tokens;
}

void SchedulerEngine::Impl::cover(Request& request, TableUpdate update, GroupBlocks added,
                                  const StepTokens& tokens) {
  TokenProof& proof = request.proof;
  const std::uint32_t block_tokens = options_.block_tokens;
  const std::uint32_t num_computed = tokens.num_computed;
  request.scheduled_in = last_seq_.next();
  request.num_computed = num_computed;
  if (update == TableUpdate::kReplace) {
    for (std::size_t group = 0; group < request.tables.size(); ++group) {
      request.tables[group].clear();
      if (!added.empty()) request.tables[group].assign(added[group].begin(), added[group].end());
    }
    const std::uint32_t first = admit(request, num_computed) / block_tokens;
    for (std::size_t group = 0; group < added.size(); ++group) {
      for (std::size_t i = first; i < added[group].size(); ++i) {
        begin_write(group, added[group][i], request.generation);
      }
    }
  } else {
    const std::uint32_t first = num_computed / block_tokens;
    // Others may have blocks of which the tokens are known. A draft's are its request's alone.
    if (num_computed < proof.sure_to) proof.rewritten_to = proof.to;
    if (num_computed < proof.rewritten_to) {
      const std::uint32_t end = num_computed + tokens.num_scheduled + block_tokens - 1;
      void_behind(request, first, end / block_tokens);
    }
    if (num_computed < proof.to) {  // Taken back.
      request.num_proven = std::min(request.num_proven, first);
      const std::uint32_t end = (proof.to + block_tokens - 1) / block_tokens;
      for (std::size_t group = 0; group < request.tables.size(); ++group) {
        if (groups_.has_states(group)) continue;
        const auto& table = request.tables[group];
        for (std::uint32_t i = first; i < std::min<std::size_t>(end, table.size()); ++i) {
          begin_write(group, table[i], request.generation);
        }
      }
    }
    for (std::size_t group = 0; group < added.size(); ++group) {
      for (const BlockId block : added[group]) begin_write(group, block, request.generation);
      auto& table = request.tables[group];
      table.insert(table.end(), added[group].begin(), added[group].end());
    }
    if (num_computed < proof.from || num_computed > proof.to) {
      proof.from = num_computed;
      proof.awaited_from = TokenProof::kNone;
    }
  }
  proof.to = num_computed + tokens.num_scheduled;
  proof.has_drafts |= tokens.num_drafts > 0;
  if (proof.has_drafts) {
    // Drafts may have been taken back that the engine still counts as computed. But what it knows
    // when it makes the plan is computed with it, or before.
    const auto num_known = static_cast<std::uint32_t>(request.hashes->size()) * block_tokens;
    proof.sure_to = std::max(std::min(proof.sure_to, num_computed), std::min(proof.to, num_known));
  } else {
    proof.sure_to = proof.to;
  }
  if (proof.awaited_from != TokenProof::kNone) doubt(request);
}

void SchedulerEngine::Impl::void_behind(const Request& writer, std::uint32_t first,
                                        std::uint32_t end) {
  std::unordered_set<BlockId> written;
  for (std::size_t group = 0; group < writer.tables.size(); ++group) {
    const auto& table = writer.tables[group];
    for (std::size_t i = first; i < std::min<std::size_t>(end, table.size()); ++i) {
      if (!groups_.is_null(group, table[i])) written.insert(table[i]);
    }
  }
  requests_.for_each([&](Request& request) {
    if (&request == &writer) return;
    const auto is_written = [&](BlockId block) { return written.contains(block); };
    const auto has_one = [&](const std::vector<BlockId>& table) {
      return std::any_of(table.begin(), table.end(), is_written);
    };
    if (std::none_of(request.tables.begin(), request.tables.end(), has_one)) return;
    request.states_in_doubt.clear();
    request.proof.from = request.proof.to;
    request.proof.awaited_from = TokenProof::kNone;
  });
}

std::uint32_t SchedulerEngine::Impl::num_provable(const Request& request) const {
  std::size_t end =
      std::min<std::size_t>({request.num_keys(), request.proof.sure_to / options_.block_tokens,
                             request.proof.num_trusted});
  for (const auto& table : request.tables) end = std::min(end, table.size());
  return static_cast<std::uint32_t>(end);
}

void SchedulerEngine::Impl::prove(Request& request) {
  const std::uint32_t end = num_provable(request);
  while (request.num_proven < end && prove_at(request, request.num_proven)) ++request.num_proven;
}

bool SchedulerEngine::Impl::is_idle_at(const Request& request, std::size_t group,
                                       std::uint32_t at) const {
  // Of states, what is found is the last one; what is left is told by on_state().
  if (groups_.has_states(group)) return at + 1 != request.proof.num_state_blocks;
  return groups_.is_null(group, request.tables[group][at]);
}

bool SchedulerEngine::Impl::prove_at(Request& request, std::uint32_t at) {
  const TokenProof& proof = request.proof;
  const bool is_covered = std::uint64_t{at} * options_.block_tokens >= proof.from;
  const std::size_t num_groups = request.tables.size();
  const auto is_its = [&](std::size_t group) {
    return is_covered && proven_.is_written_by(request.tables[group][at], request.generation);
  };
  for (std::size_t group = 0; group < num_groups; ++group) {
    if (is_idle_at(request, group, at)) continue;
    if (is_its(group)) continue;
    if (proven_.holds(request.tables[group][at], request.keys[group][at])) continue;
    // It was right when those behind it were computed, and slid out of the window since.
    const bool slid =
        is_covered && !groups_.needs_all(group) && at < groups_.first_kept(group, proof.to);
    if (!slid) return false;
  }
  for (std::size_t group = 0; group < num_groups; ++group) {
    if (is_idle_at(request, group, at) || !is_its(group)) continue;
    proven_.prove(request.tables[group][at], request.keys[group][at]);
  }
  return true;
}

bool SchedulerEngine::Impl::is_in_doubt(const Request& request) const {
  return request.proof.awaited_from != TokenProof::kNone ||
         request.num_proven < num_provable(request) ||
         (!request.states_in_doubt.empty() && request.proof.num_trusted == TokenProof::kNone);
}

void SchedulerEngine::Impl::doubt(Request& request) {
  if (std::exchange(request.is_in_doubt, true)) return;
  in_doubt_.push_back(&request);
}

void SchedulerEngine::Impl::leave_doubt(Request& request) {
  if (std::exchange(request.is_in_doubt, false)) std::erase(in_doubt_, &request);
}

void SchedulerEngine::Impl::settle_doubt() {
  // Who found another one's blocks may stand before it.
  for (bool again = !in_doubt_.empty(); again;) {
    again = false;
    for (Request* request : in_doubt_) {
      const std::uint32_t before = request->num_proven;
      const auto where = is_in_step(*request) ? OfferTo::kStep : OfferTo::kBacklog;
      if (request->storable) offer_proven(*request, where);
      again |= request->num_proven > before;
    }
  }
  std::erase_if(in_doubt_, [this](Request* request) {
    if (request->storable && is_in_doubt(*request)) return false;
    request->is_in_doubt = false;
    return true;
  });
}

void SchedulerEngine::Impl::forget_uncomputed(Request& request) {
  std::unordered_set<std::uint64_t> marks;
  const std::uint32_t first = request.proof.sure_to / options_.block_tokens;
  for (const auto& of_group : request.keys) {
    for (std::size_t i = first; i < of_group.size(); ++i) {
      marks.insert(ProvenBlocks::mark_of(of_group[i]));
    }
  }
  if (marks.empty()) return;
  proven_.keep_if([&](BlockId /*block*/, std::uint64_t mark) { return !marks.contains(mark); });
}

void SchedulerEngine::Impl::begin_load(Request& request, std::uint32_t first, std::uint32_t count) {
  leave_doubt(request);
  request.num_proven = 0;
  request.states_in_doubt.clear();
  request.proof = {};
  request.proof.admission = Admission::kOwnLoad;
  request.load_first = first;
  request.num_loading = count;
  for (std::size_t group = 0; group < request.tables.size(); ++group) {
    const auto& table = request.tables[group];
    for (std::size_t i = first; i < table.size(); ++i) begin_write(group, table[i], Generation());
  }
}

void SchedulerEngine::Impl::prove_loaded(std::string_view engine_id) {
  const Request* request = requests_.find(engine_id);
  if (request == nullptr) return;
  const std::size_t end =
      std::min<std::size_t>(request->num_keys(), request->load_first + request->num_loading);
  for (std::size_t group = 0; group < request->tables.size(); ++group) {
    const auto& table = request->tables[group];
    for (std::size_t i = request->load_first; i < std::min(end, table.size()); ++i) {
      if (!groups_.is_null(group, table[i])) proven_.prove(table[i], request->keys[group][i]);
    }
  }
}

void SchedulerEngine::Impl::plan_witness(StepPlan& plan) {
  if (!ranks_.all_ready() || stores_off()) return;
  const auto waits = [](const Request* request) {
    return request->proof.awaited_from != TokenProof::kNone &&
           request->proof.witness == TransferId();
  };
  if (std::none_of(in_doubt_.begin(), in_doubt_.end(), waits)) return;
  const Owner owner = transfer_owner();
  const TransferId witness = next_transfer();
  plan.stores.push_back(stores_.plan_witness(witness, owner, patience_.stamp()));
  for (Request* request : in_doubt_) {
    if (waits(request)) request->proof.witness = witness;
  }
}

void SchedulerEngine::Impl::hear_witnesses() {
  const std::vector<TransferId> heard = stores_.take_witnesses();
  if (heard.empty()) return;
  for (Request* request : in_doubt_) {
    TokenProof& proof = request->proof;
    if (proof.awaited_from == TokenProof::kNone ||
        std::find(heard.begin(), heard.end(), proof.witness) == heard.end()) {
      continue;
    }
    proof.from = std::exchange(proof.awaited_from, TokenProof::kNone);
  }
  settle_doubt();
}

void SchedulerEngine::Impl::on_blocks_invalid(std::span<const BlockId> blocks) {
  if (blocks.empty()) return;
  const std::unordered_set<BlockId> invalid(blocks.begin(), blocks.end());
  std::vector<BlockId> lost(blocks.begin(), blocks.end());
  requests_.for_each([&](Request& request) {
    std::size_t first = request.proof.to / options_.block_tokens + 1;
    const std::size_t end = first;
    for (const auto& table : request.tables) {
      for (std::size_t i = 0; i < std::min(first, table.size()); ++i) {
        if (invalid.contains(table[i])) first = i;
      }
    }
    if (first == end) return;
    for (const auto& table : request.tables) {
      // What it computed behind them it computed from them.
      for (std::size_t i = first; i < table.size(); ++i) {
        if (proven_.is_written_by(table[i], request.generation)) lost.push_back(table[i]);
      }
    }
    request.num_proven = std::min(request.num_proven, static_cast<std::uint32_t>(first));
    request.num_offered = std::min(request.num_offered, static_cast<std::uint32_t>(first));
    request.states_in_doubt.clear();
    request.proof.from = request.proof.to;
    request.proof.awaited_from = TokenProof::kNone;
    // With asynchronous scheduling vLLM takes the next step's token for that of the step that
    // failed, and the ranks do not: they disagree about what comes behind the tokens known now.
    if (request.state != RequestState::kIdle) return;
    sync_keys(request);
    request.proof.num_trusted =
        std::min(request.proof.num_trusted, static_cast<std::uint32_t>(request.num_keys()));
  });
  for (const BlockId block : lost) {
    proven_.forget(block);
    drop_rewritten(block);
    std::erase_if(deferred_, [block](const BacklogEntry& entry) { return entry.block == block; });
  }
  for (const TransferId transfer : stores_.abort_stores_of(lost)) loads_.cancel_store(transfer);
}

void SchedulerEngine::Impl::forget_proofs() {
  for (Request* request : in_doubt_) request->is_in_doubt = false;
  in_doubt_.clear();
  // What the engine's own cache still has it goes on to serve: it is not of other weights.
  proven_.keep_if([this](BlockId block, std::uint64_t mark) {
    const auto key = pool_ == nullptr ? std::nullopt : pool_->key(block);
    return key && ProvenBlocks::mark_of(*key) == mark;
  });
  requests_.for_each([](Request& request) {
    request.num_proven = 0;
    request.states_in_doubt.clear();
    request.proof.from = request.proof.to;
    request.proof.awaited_from = TokenProof::kNone;
  });
}

void SchedulerEngine::Impl::dcheck_proven(std::span<const BlockId> blocks,
                                          std::span<const cpu_tier::BlockKey> keys) const {
#ifndef NDEBUG
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    KVFERRY_CHECK(proven_.holds(blocks[i], keys[i]),
                  "block " + std::to_string(blocks[i].value()) +
                      " is to be stored, and nothing has proven what it holds");
  }
#else
  static_cast<void>(blocks);
  static_cast<void>(keys);
#endif
}

}  // namespace kvferry::connector
