// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/ids.hpp"
#include "kvferry/connector/backlog.hpp"
#include "kvferry/connector/ownership_table.hpp"
#include "kvferry/connector/scheduler_engine.hpp"
#include "kvferry/connector/step_plan.hpp"
#include "kvferry/cpu_tier/cpu_tier.hpp"

#include "load_book.hpp"
#include "rank_register.hpp"
#include "store_book.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

namespace kvferry::connector {

/// The scheduler side. Its methods are in scheduler_engine.cpp (the life of requests, reports) and
/// scheduler_plan.cpp (the step's plan).
class SchedulerEngine::Impl {
 public:
  explicit Impl(SchedulerOptions options)
      : options_(std::move(options)),
        tier_(options_.max_slots),
        backlog_(options_.num_blocks),
        owners_(options_.domain),
        ranks_(options_),
        stores_(tier_, backlog_, options_.world_size),
        loads_(tier_, owners_, options_.world_size) {}

  void set_pool(const BlockPool* pool) { pool_ = pool; }
  OwnershipTable& owners() { return owners_; }

  std::uint32_t lookup(std::string_view engine_id, std::uint32_t num_local_tokens,
                       std::uint32_t num_tokens);
  void on_allocated(std::string_view engine_id, std::span<const BlockId> table,
                    std::uint32_t num_external_tokens);
  void on_scheduled(std::string_view engine_id, TableUpdate update, std::span<const BlockId> blocks,
                    std::uint32_t num_computed_tokens, std::uint32_t num_scheduled_tokens);
  void on_preempted(std::string_view engine_id);
  std::string finish_plan();
  std::vector<std::string> fold(std::span<const std::span<const std::byte>> reports);
  void on_finished(std::string_view engine_id);
  void reset_cache();
  [[nodiscard]] SchedulerSnapshot snapshot() const;

 private:
  /// Blocks of a scheduled request that this step completes, or that it found in the engine's
  /// cache.
  struct Candidate {
    Request* request;
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
  /// The block is written in this step: what the backlog knows of it is void.
  void drop_rewritten(BlockId block) { skipped_reallocated_ += backlog_.drop(block) ? 1 : 0; }
  /// Blocks that became known as complete after the last plan the request was in (asynchronous
  /// scheduling).
  void offer_rest(Request& request);
  /// A rank has no staging ring.
  [[nodiscard]] bool stores_off() const { return ranks_.all_ready() && stores_.ring_blocks() == 0; }
  TransferId next_transfer() { return last_transfer_ = last_transfer_.next(); }
  /// Owner of a store whose blocks belong to several requests, or have outlived theirs: the
  /// transfer itself.
  [[nodiscard]] Owner transfer_owner() const {
    return {options_.domain, RequestId(), Generation(last_transfer_.next().value())};
  }
  void plan_backlog(StepPlan& plan, std::uint32_t& limit);
  /// A transfer of its own for a request that completes many blocks.
  void plan_candidate(StepPlan& plan, std::uint32_t& limit, const Candidate& candidate);
  /// One transfer for all requests that complete a single block.
  void plan_single_blocks(StepPlan& plan, std::uint32_t& limit);
  /// Plans as many of the first blocks as `limit` and the tier allow; the others enter the backlog.
  void plan_or_defer(StepPlan& plan, std::uint32_t& limit, Owner owner,
                     std::span<const BlockId> blocks, std::span<const cpu_tier::BlockKey> keys,
                     std::span<const Predecessor> predecessors);
  /// Reserves for as many of the first blocks as the tier has room for, plans them, and returns how
  /// many.
  std::uint32_t plan_store(StepPlan& plan, Owner owner, StoreReadiness readiness,
                           std::span<const BlockId> blocks,
                           std::span<const cpu_tier::BlockKey> keys,
                           std::span<const Predecessor> predecessors);
  [[nodiscard]] static Predecessor predecessor_of(const Candidate& candidate) {
    if (candidate.first == 0) return std::nullopt;
    return candidate.request->keys[candidate.first - 1];
  }

  SchedulerOptions options_;
  const BlockPool* pool_ = nullptr;
  cpu_tier::CpuTier tier_;
  Backlog backlog_;
  OwnershipTable owners_;
  RankRegister ranks_;
  StoreBook stores_;
  LoadBook loads_;
  PlanSeq last_seq_;
  TransferId last_transfer_;
  std::vector<Candidate> candidates_;
  // Scratch, kept for its capacity.
  std::vector<cpu_tier::KeyState> states_;
  std::vector<cpu_tier::BlockKey> keys_;
  std::vector<BlockId> blocks_;
  std::vector<Predecessor> predecessors_;
  std::unordered_set<std::uint64_t> seen_;
  std::uint64_t hit_tokens_ = 0;
  std::uint64_t skipped_exhausted_ = 0;
  std::uint64_t skipped_reallocated_ = 0;
  std::uint64_t stale_reports_ = 0;
};

}  // namespace kvferry::connector
