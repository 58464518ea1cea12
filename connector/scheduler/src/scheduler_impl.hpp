// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/ids.hpp"
#include "kvferry/connector/scheduler/scheduler_engine.hpp"
#include "kvferry/connector/wire/step_plan.hpp"
#include "kvferry/connector/wire/step_report.hpp"
#include "kvferry/cpu_tier/slots/cpu_tier.hpp"

#include "backlog.hpp"
#include "block_groups.hpp"
#include "class_tiers.hpp"
#include "load_book.hpp"
#include "load_patience.hpp"
#include "load_sharing.hpp"
#include "lookups.hpp"
#include "proven_blocks.hpp"
#include "rank_patience.hpp"
#include "rank_register.hpp"
#include "request_table.hpp"
#include "store_book.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

namespace kvferry::connector {

/// The scheduler side. Its methods are in scheduler_engine.cpp (the life of requests, reports),
/// scheduler_steps.cpp (what a step computes), scheduler_proof.cpp (which of it is known to be
/// right), scheduler_offers.cpp (what the tier's policy hears) and scheduler_plan.cpp (the plan).
class SchedulerEngine::Impl {
 public:
  explicit Impl(SchedulerOptions options)
      : options_(std::move(options)),
        tiers_(options_),
        groups_(options_.groups, options_.block_tokens),
        backlog_(options_.num_blocks),
        proven_(options_.num_blocks),
        requests_(options_.domain, options_.groups.size()),
        lookups_(tiers_, groups_),
        ranks_(options_),
        patience_(options_.rank_timeout, options_.clock, options_.world_size),
        load_patience_(options_.load_timeout, options_.clock),
        stores_(tiers_, backlog_, options_.world_size),
        loads_(tiers_, requests_, options_.world_size),
        sharing_(loads_, options_.max_load_wait, options_.clock) {}

  void set_pool(const BlockPool* pool) { pool_ = pool; }
  void on_request(std::string_view engine_id, std::shared_ptr<const BlockHashes> hashes);
  RequestTable& requests() { return requests_; }

  std::optional<std::uint32_t> lookup(std::string_view engine_id, std::uint32_t num_local_tokens,
                                      std::uint32_t num_tokens);
  /// Whose blocks a shared tier's are is known when every rank has registered. It does so in the
  /// first step, which needs no token: a request may be asked again behind it, for `max_load_wait`.
  [[nodiscard]] bool may_wait_for_ranks();
  void note_local(std::string_view engine_id, std::uint32_t num_local_tokens);
  void on_blocks_invalid(std::span<const BlockId> blocks);
  using GroupBlocks = std::span<const std::span<const BlockId>>;
  void on_allocated(std::string_view engine_id, GroupBlocks tables,
                    std::uint32_t num_external_tokens);
  void on_scheduled(std::string_view engine_id, TableUpdate update, GroupBlocks blocks,
                    const StepTokens& tokens);
  void on_state(std::string_view engine_id, GroupId group, BlockId block, std::uint32_t num_tokens);
  void on_preempted(std::string_view engine_id);
  std::string finish_plan();
  FoldResult fold(std::span<const std::span<const std::byte>> reports);
  void on_finished(std::string_view engine_id, std::uint32_t num_tokens = 0);
  void reset_cache();
  std::vector<cpu_tier::KeyEvent> take_key_events() { return tiers_.take_key_events(); }
  [[nodiscard]] SchedulerSnapshot snapshot() const;
  [[nodiscard]] std::uint64_t wasted_bytes(const cpu_tier::SlabSnapshot& slabs) const;
  [[nodiscard]] bool is_busy() const {
    return stores_.num_in_flight() + loads_.num_in_flight() > 0;
  }
  [[nodiscard]] std::uint32_t num_slots() const {
    return num_chunks_ * options_.classes.front().slots_per_chunk;
  }
  /// Debug builds: what the books hold is what the tier counts (G10).
  void dcheck_consistent() const;

 private:
  /// Those of this engine that are meant for it. Throws as fold(); nothing has changed then.
  [[nodiscard]] std::vector<StepReport> readable(
      std::span<const std::span<const std::byte>> encoded) const;
  /// Blocks of a scheduled request that this step completes, or that it found in the engine's
  /// cache.
  struct Candidate {
    Request* request;
    std::size_t group;
    std::uint32_t first;
    std::uint32_t last;
  };

  /// A single block, as a request that decodes completes it: a transfer of its own would cost more
  /// than it holds.
  [[nodiscard]] static bool is_single(const Candidate& candidate) {
    return candidate.last - candidate.first == 1;
  }
  [[nodiscard]] static bool is_absent(cpu_tier::KeyState state) {
    return state == cpu_tier::KeyState::kAbsent;
  }
  [[nodiscard]] static bool is_admitted(cpu_tier::OfferAnswer answer) {
    return answer == cpu_tier::OfferAnswer::kStore;
  }
  [[nodiscard]] SlabClassId class_of(const Candidate& candidate) const {
    return groups_.class_of(candidate.group);
  }
  [[nodiscard]] static std::span<const cpu_tier::BlockKey> keys_of(const Candidate& candidate) {
    return std::span(candidate.request->keys[candidate.group])
        .subspan(candidate.first, candidate.last - candidate.first);
  }
  [[nodiscard]] static std::span<const BlockId> blocks_of(const Candidate& candidate) {
    return std::span(candidate.request->tables[candidate.group])
        .subspan(candidate.first, candidate.last - candidate.first);
  }
  /// The positions [first, last), less the first ones that only stand for blocks which slid out of
  /// a window: those are used by nobody.
  [[nodiscard]] Candidate candidate_of(Request& request, std::size_t group, std::uint32_t first,
                                       std::uint32_t last) const;
  /// Offers the blocks to the tier's policy. answers_ says then which of them are to be stored.
  void offer(const Candidate& candidate);
  /// What the tier admits of them waits for its turn.
  void defer(const Candidate& candidate);
  /// Of [first, last), the states that the request has found in the engine's cache: the pool says
  /// whether a block is still what the table says.
  void defer_states(Request& request, std::size_t group, std::uint32_t first, std::uint32_t last);
  /// A rank that kept silent for too long is lost: throws TimeoutError.
  void expect_ranks();
  /// Throws ProtocolError for a report of a plan that was never made.
  void expect_known_plan(const StepReport& report) const;
  void end_step();
  /// The block is written in this step: what the backlog knows of it is void.
  void drop_rewritten(BlockId block) { skipped_reallocated_ += backlog_.drop(block) ? 1 : 0; }
  /// What a step adds to a table it writes, now or later, behind the first `first_written` of a
  /// whole table.
  void drop_added(TableUpdate update, GroupBlocks blocks, std::uint32_t first_written);
  void begin_write(std::size_t group, BlockId block, Generation writer) {
    if (!groups_.is_null(group, block)) proven_.begin_write(block, writer);
  }

  // Proof.
  /// Takes note of what the step computes: which tokens are covered, which blocks are written.
  void cover(Request& request, TableUpdate update, GroupBlocks added, const StepTokens& tokens);
  /// Part of cover(), for a whole table: how the request came by what it has. Returns the first
  /// token whose block is written by a request or a load.
  [[nodiscard]] std::uint32_t admit(Request& request, std::uint32_t num_computed);
  /// A step computes positions [first, end) of the writer again, which other requests may share:
  /// what these computed behind them in earlier steps they computed from what was there before.
  void void_behind(const Request& writer, std::uint32_t first, std::uint32_t end);
  /// Proves as many blocks as can be, from the first one on: each on those before it.
  void prove(Request& request);
  [[nodiscard]] bool prove_at(Request& request, std::uint32_t at);
  /// Whether the group's block at a position stands for nothing that the proof of the prefix needs.
  [[nodiscard]] bool is_idle_at(const Request& request, std::size_t group, std::uint32_t at) const;
  /// The step, as far as the request is in it; else the backlog.
  enum class OfferTo : std::uint8_t { kStep, kBacklog };
  /// Offers what is proven and has not been offered.
  void offer_proven(Request& request, OfferTo where);
  void offer_states(Request& request, OfferTo where);
  [[nodiscard]] bool is_in_step(const Request& request) const {
    return in_step_ && request.scheduled_in == last_seq_.next();
  }
  /// Offers what has come to be proven since, of those who wait for the proof of others' blocks.
  void settle_doubt();
  void doubt(Request& request);
  void leave_doubt(Request& request);
  [[nodiscard]] bool is_in_doubt(const Request& request) const;
  [[nodiscard]] std::uint32_t num_provable(const Request& request) const;
  /// The engine may have given blocks these keys in the pass in which it preempted the request.
  void forget_uncomputed(Request& request);
  void begin_load(Request& request, std::uint32_t first, std::uint32_t count);
  void prove_loaded(std::string_view engine_id);
  void plan_witness(StepPlan& plan);
  void hear_witnesses();
  void forget_proofs();
  /// Blocks that became known as complete after the last plan the request was in (asynchronous
  /// scheduling).
  void offer_rest(Request& request);
  /// The tier has the slots that are ready on every rank.
  void grow_tier();
  /// Request::sync_keys(), for all that keeps something of its keys.
  void sync_keys(Request& request);
  /// The request waits for its turn from now on.
  void await_turn(Request& request) {
    if (options_.tier.max_awaited_share > 0) lookups_.await(request);
  }
  /// A rank has no staging ring.
  [[nodiscard]] bool stores_off() const { return ranks_.all_ready() && stores_.ring_blocks() == 0; }
  TransferId next_transfer() { return last_transfer_ = last_transfer_.next(); }
  /// Owner of a store whose blocks belong to several requests, or have outlived theirs: the
  /// transfer itself.
  [[nodiscard]] Owner transfer_owner() const {
    return {options_.domain, RequestId(), Generation(last_transfer_.next().value())};
  }
  /// A transfer for each slab class.
  void plan_backlog(StepPlan& plan, std::uint32_t& limit);
  /// Takes as many from the backlog as are still what they were, at most `limit`.
  void take_backlog(std::uint32_t limit);
  /// A transfer of its own for a request that completes many blocks.
  void plan_candidate(StepPlan& plan, std::uint32_t& limit, const Candidate& candidate);
  /// One transfer for all of the candidates that are a single block of that class.
  void plan_single_blocks(StepPlan& plan, std::uint32_t& limit, SlabClassId slab_class,
                          std::span<const Candidate> candidates);
  /// Plans as many of the first blocks as `limit` and the tier allow; the others enter the backlog.
  void plan_or_defer(StepPlan& plan, std::uint32_t& limit, Owner owner, SlabClassId slab_class,
                     std::span<const BlockId> blocks, std::span<const cpu_tier::BlockKey> keys,
                     std::span<const Predecessor> predecessors);
  /// Reserves for as many of the first blocks as the tier has room for, plans them, and returns how
  /// many.
  std::uint32_t plan_store(StepPlan& plan, Owner owner, SlabClassId slab_class,
                           StoreReadiness readiness, std::span<const BlockId> blocks,
                           std::span<const cpu_tier::BlockKey> keys,
                           std::span<const Predecessor> predecessors);
  /// Debug builds: nothing else is ever stored.
  void dcheck_proven(std::span<const BlockId> blocks,
                     std::span<const cpu_tier::BlockKey> keys) const;
  [[nodiscard]] static Predecessor predecessor_of(const Candidate& candidate) {
    if (candidate.first == 0) return std::nullopt;
    return candidate.request->keys[candidate.group][candidate.first - 1];
  }

  SchedulerOptions options_;
  const BlockPool* pool_ = nullptr;
  ClassTiers tiers_;
  BlockGroups groups_;
  Backlog backlog_;
  ProvenBlocks proven_;
  RequestTable requests_;
  Lookups lookups_;
  RankRegister ranks_;
  RankPatience patience_;
  LoadPatience load_patience_;
  StoreBook stores_;
  LoadBook loads_;
  LoadSharing sharing_;
  PlanSeq last_seq_;
  std::optional<RankPatience::Stamp> first_plan_;
  TransferId last_transfer_;
  std::vector<Candidate> candidates_;
  std::vector<Candidate> states_;   ///< A single block each, offered once.
  std::vector<Request*> in_doubt_;  ///< Some of what they have is not proven yet.
  /// From the first on_scheduled() to finish_plan().
  bool in_step_ = false;
  /// What entered the backlog within a step: of use from the next one on, because a request of this
  /// one may write the block, under the very key.
  std::vector<BacklogEntry> deferred_;
  // Scratch, kept for its capacity.
  std::vector<cpu_tier::OfferAnswer> answers_;
  std::vector<cpu_tier::BlockKey> keys_;
  std::vector<BlockId> blocks_;
  std::vector<BacklogEntry> entries_;
  std::vector<Predecessor> predecessors_;
  std::unordered_set<std::uint64_t> seen_;
  std::uint64_t hit_tokens_ = 0;
  std::uint64_t skipped_exhausted_ = 0;
  std::uint64_t skipped_declined_ = 0;
  std::uint64_t skipped_reallocated_ = 0;
  std::uint64_t stale_reports_ = 0;
  std::uint32_t num_chunks_ = 0;                                      ///< Of the tier, usable now.
  std::optional<std::chrono::steady_clock::time_point> first_asked_;  ///< Before that.
};

}  // namespace kvferry::connector
