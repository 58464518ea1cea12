// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/ids.hpp"
#include "kvferry/connector/scheduler/engine_step.hpp"
#include "kvferry/connector/scheduler/engine_view.hpp"
#include "kvferry/connector/wire/owner.hpp"
#include "kvferry/connector/wire/step_plan.hpp"
#include "kvferry/cpu_tier/slots/tier.hpp"

#include "backlog.hpp"
#include "block_groups.hpp"
#include "block_prover.hpp"
#include "decision_journal.hpp"
#include "per_request.hpp"
#include "rank_patience.hpp"
#include "request_table.hpp"
#include "store_book.hpp"
#include "transfer_ids.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <unordered_set>
#include <vector>

namespace kvferry::connector {

/// Decides what is stored, and when. A proven block is offered once for each turn of its request,
/// so that the tier's policy learns of it. If the tier admits it, it is reserved and ordered: in
/// the plan of the step that completes it, or through the backlog in a later one.
///
/// A plan has room for as many bytes as the ranks' rings take (StoreBook::plan_limit()). States
/// have the first claim on it; then come the backlog, long pieces of one request, and single
/// blocks. The rest enters the backlog.
///
/// store_planner.cpp makes the plan; store_offers.cpp offers, and fills the backlog.
///
/// A request's blocks are offered only while it is *storable*. After a reset of the cache, or with
/// local blocks from before one, it is not, until it is computed anew from its first token. Its
/// blocks are also offered only up to Request::store_limit. The blocks after that are proven,
/// because other requests may share them, but they are neither offered nor in the backlog for this
/// request. One thread at a time.
class StorePlanner {
 public:
  /// The parts that it takes outlive it.
  StorePlanner(DomainId domain, Retention retention, cpu_tier::Tier& tier,
               const BlockGroups& groups, BlockProver& prover, Backlog& backlog, StoreBook& stores,
               TransferIds& transfers)
      : domain_(domain),
        retention_(retention),
        tier_(tier),
        groups_(groups),
        prover_(prover),
        backlog_(backlog),
        stores_(stores),
        transfers_(transfers) {}

  /// The pool with which backlog entries are checked; it outlives this object. Null: nothing of the
  /// backlog is stored.
  void set_pool(const BlockPool* pool) { pool_ = pool; }
  /// It is told which blocks are not stored. It outlives this object; null: there is none.
  void set_journal(DecisionJournal* journal) { journal_ = journal; }

  // ---- the step that is being planned ----

  /// Until end_step(), calls describe the step of plan `seq`.
  void enter_step(PlanSeq seq) { step_ = seq; }
  /// This step writes the block, so its backlog entry is void.
  void drop_rewritten(BlockId block) {
    if (!backlog_.drop(block)) return;
    ++num_reallocated_;
    note(recorder::Skip::kReallocated, RequestId(), {&backlog_.last_key(block), 1});
  }
  /// The request is in the step, and the prover covers it. Returns whether the step may complete
  /// blocks of it. Then offer_step() must be called, with the request's keys up to date.
  [[nodiscard]] bool note_step(const Request& request, TableUpdate update,
                               const StepTokens& tokens) {
    Offers& offers = offers_.of(request);
    // All of it is computed anew, so nothing is left from before a reset.
    if (update == TableUpdate::kReplace && tokens.num_computed == 0) offers.storable = true;
    offers.scheduled_in = *step_;
    offers.num_computed = tokens.num_computed;
    const std::uint32_t complete =
        (tokens.num_computed + tokens.num_scheduled) / groups_.hash_tokens();
    return complete != tokens.num_computed / groups_.hash_tokens() ||
           offers.num_offered != std::min(complete, request.store_limit);
  }
  void offer_step(const Request& request, TableUpdate update, const StepTokens& tokens);
  /// Whether a state that the request leaves now can be stored.
  [[nodiscard]] bool takes_states(const Request& request) const {
    return is_storable(request) && is_in_step(request);
  }
  /// Offers the newly proven blocks of requests that waited for the proof of other requests'
  /// blocks.
  void offer_newly_proven();
  /// The orders of the step's stores, and of a witness if the prover needs one, sent at `stamp`.
  [[nodiscard]] std::vector<StoreOrder> plan(RankPatience::Stamp stamp);
  /// Moves what the step left for later into the backlog. Call it after plan(), or without a plan.
  void end_step();

  // ---- the life of requests ----

  /// A request that is not storable waits until all its tokens are computed; nothing of it is
  /// offered.
  [[nodiscard]] bool is_storable(const Request& request) const {
    return offers_.of(request).storable;
  }
  /// Sets the position up to which the tier has every block of full attention, but not what the
  /// other groups need there; 0: none. The request is computed from before that position, so the
  /// tier can get the missing blocks then.
  void note_junction(const Request& request, std::uint32_t position) {
    offers_.of(request).junction = position;
  }
  /// Offers, at the end of its turn, what is proven of the request and was not offered. The request
  /// is storable, and its keys are up to date.
  void offer_rest(const Request& request);
  /// The positions from `first` on are offered again once they are proven.
  void offer_again(const Request& request, std::uint32_t first);
  /// The request's blocks may be from before a reset.
  void hold_back(const Request& request) { offers_.of(request).storable = false; }
  void on_preempted(const Request& request);
  /// The request has keys up to position `left` only.
  void on_keys_dropped(const Request& request, std::uint32_t left) { offer_again(request, left); }
  void drop(const Request& request);

  // ---- what is taken back ----

  /// Blocks among these that wait for their turn are not stored.
  void forget(std::span<const BlockId> blocks);
  /// No waiting block is stored, nor any block that the requests have now.
  void forget_all(RequestTable& requests);

  /// Numbers of blocks; SchedulerSnapshot explains them.
  struct Skipped {
    std::uint64_t exhausted = 0;
    std::uint64_t declined = 0;
    std::uint64_t reallocated = 0;
    std::uint64_t unwanted = 0;
  };
  [[nodiscard]] Skipped skipped() const {
    return {num_exhausted_, num_declined_, num_reallocated_, num_unwanted_};
  }

 private:
  static constexpr std::uint32_t kNoEnd = std::numeric_limits<std::uint32_t>::max();
  struct Offers {
    std::uint32_t num_offered = 0;  ///< Positions, from the first one, that were offered.
    std::uint32_t num_counted = 0;  ///< Positions up to which unwanted blocks were counted.
    /// The position of a block of full attention that the tier declined. Nothing from here on is
    /// stored in any group, because no load would reach it.
    std::uint32_t store_end = kNoEnd;
    std::uint32_t num_computed = 0;  ///< Tokens before the last plan with the request.
    std::uint32_t junction = 0;      ///< As of the last lookup.
    PlanSeq scheduled_in;            ///< That plan.
    bool storable = true;
  };
  /// Blocks [first, last) of a group of a scheduled request which this step completes, or which the
  /// request found in the engine's cache.
  struct Candidate {
    const Request* request;
    GroupId group;
    std::uint32_t first;
    std::uint32_t last;

    /// Whether it is one block, as a decoding request completes it: its own transfer would not be
    /// worth its cost.
    [[nodiscard]] bool is_single() const { return last - first == 1; }
    [[nodiscard]] std::span<const cpu_tier::BlockKey> keys() const {
      return request->keys_of(group).subspan(first, last - first);
    }
    [[nodiscard]] std::span<const BlockId> blocks() const {
      return request->table(group).subspan(first, last - first);
    }
    [[nodiscard]] Predecessor predecessor() const {
      if (first == 0) return std::nullopt;
      return request->keys_of(group)[first - 1];
    }
  };
  /// The blocks of one transfer, with one key each.
  struct Wish {
    SlabClassId slab_class;
    StoreReadiness readiness;
    /// Nothing if the blocks are of several requests, or may outlive their requests. The transfer
    /// then owns itself.
    std::optional<Owner> owner;
    std::span<const BlockId> blocks;
    std::span<const cpu_tier::BlockKey> keys;
    std::span<const Predecessor> predecessors;
  };
  /// The stores of one plan, while they are made.
  struct Draft {
    std::vector<StoreOrder> orders;
    std::uint64_t room;  ///< Bytes.
    RankPatience::Stamp stamp;
  };
  /// Memory for one plan or offer, so that it is not allocated each time. It carries nothing from
  /// one call to the next.
  struct Buffer {
    std::vector<cpu_tier::OfferAnswer> answers;
    std::vector<cpu_tier::BlockKey> keys;
    std::vector<BlockId> blocks;
    std::vector<Predecessor> predecessors;
    std::vector<std::uint8_t> retained;
    std::unordered_set<std::uint64_t> seen;
  };
  /// Whether to offer to the step, if the request is in it, or to the backlog.
  enum class OfferTo : std::uint8_t { kStep, kBacklog };

  [[nodiscard]] bool is_in_step(const Request& request) const {
    return step_ && offers_.of(request).scheduled_in == *step_;
  }
  /// Which of a group's blocks are worth a store, by the Retention: sets `retained` to 1 or 0 for
  /// each.
  void mark_retained(const Request& request, GroupId group, BlockGroups::Range blocks,
                     std::vector<std::uint8_t>& retained) const;
  /// Among a group's proven blocks, the runs that are worth a store wait for the plan or, before
  /// `first_kept`, in the backlog.
  void offer_group(const Request& request, GroupId group, BlockGroups::Range blocks,
                   std::uint32_t first_kept);
  /// Offers the blocks to the tier's policy, which decides which ones are stored. The result is in
  /// `buffer.answers`.
  [[nodiscard]] std::span<const cpu_tier::OfferAnswer> offer(const Candidate& candidate,
                                                             Buffer& buffer);
  void offer_proven(const Request& request, OfferTo where);
  /// Counts the blocks after Request::store_limit that are proven up to position `end`.
  void count_unwanted(const Request& request, std::uint32_t end);
  void offer_states(const Request& request, OfferTo where);
  /// Blocks that the tier admits wait for their turn.
  void defer(const Candidate& candidate, Buffer& buffer);
  /// The states among [first, last) that the request has found in the engine's cache. The pool says
  /// whether a block is still what the table says.
  void defer_found_states(const Request& request, GroupId group, std::uint32_t first,
                          std::uint32_t last);

  void plan_witness(Draft& draft);
  /// One transfer for each slab class.
  void plan_backlog(Draft& draft, Buffer& buffer);
  /// Takes entries from the backlog whose blocks are unchanged, as many as fit into this many
  /// bytes.
  [[nodiscard]] std::vector<BacklogEntry> take_backlog(std::uint64_t room, Buffer& buffer);
  /// Plans a separate transfer for a request that completes many blocks.
  void plan_candidate(Draft& draft, const Candidate& candidate, Buffer& buffer);
  /// Plans one transfer for all candidates of that class with a single block.
  void plan_single_blocks(Draft& draft, SlabClassId slab_class,
                          std::span<const Candidate> candidates, Buffer& buffer);
  /// Plans as many blocks, from the first one, as the draft and the tier have room for. The others
  /// enter the backlog.
  void plan_or_defer(Draft& draft, const Wish& wish);
  /// Reserves slots for as many blocks, from the first one, as the tier has room for, and orders
  /// them. Returns their number.
  std::uint32_t plan_store(Draft& draft, const Wish& wish);
  void note(recorder::Skip why, RequestId request, std::span<const cpu_tier::BlockKey> keys) {
    if (journal_ != nullptr) journal_->skipped(why, request, keys);
  }
  /// In debug builds: checks that only proven blocks are stored.
  void dcheck_proven(const Wish& wish) const;

  DomainId domain_;
  Retention retention_;
  cpu_tier::Tier& tier_;
  const BlockGroups& groups_;
  BlockProver& prover_;
  Backlog& backlog_;
  StoreBook& stores_;
  TransferIds& transfers_;
  const BlockPool* pool_ = nullptr;
  DecisionJournal* journal_ = nullptr;
  PerRequest<Offers> offers_;
  std::optional<PlanSeq> step_;  ///< The plan that is being made.
  std::vector<Candidate> candidates_;
  std::vector<Candidate> states_;  ///< One block each, offered once.
  /// Blocks that entered the backlog within a step. They can be taken from the next step on,
  /// because a request of this step may write the block under the same key.
  std::vector<BacklogEntry> deferred_;
  Buffer buffer_;
  std::uint64_t num_exhausted_ = 0;
  std::uint64_t num_declined_ = 0;
  std::uint64_t num_reallocated_ = 0;
  std::uint64_t num_unwanted_ = 0;
};

}  // namespace kvferry::connector
