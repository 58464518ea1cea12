// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/ids.hpp"
#include "kvferry/connector/engine_view.hpp"
#include "kvferry/connector/owner.hpp"
#include "kvferry/cpu_tier/tier_snapshot.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvferry::connector {

/// What the scheduler side is told; every rank's first report is compared with it (G8).
struct SchedulerOptions {
  DomainId domain;
  std::uint32_t world_size = 1;
  /// Tokens of one block, which is also the engine's hash granularity.
  std::uint32_t block_tokens = 0;
  /// Blocks of the engine's GPU pool.
  std::uint32_t num_blocks = 0;
  /// Packed bytes of one block, by rank.
  std::vector<std::uint64_t> slot_bytes;
  /// Most slots that the tier may come to have; the ranks' reports set how many are usable.
  std::uint32_t max_slots = 0;
};

/// How the blocks of a scheduled request relate to its table.
enum class TableUpdate : std::uint8_t { kAppend, kReplace };

/// Everything there is to see, in one consistent view. Counters are since construction, in blocks
/// unless named otherwise.
struct SchedulerSnapshot {
  cpu_tier::TierSnapshot tier;
  std::uint64_t num_requests = 0;
  std::uint64_t num_tombstones = 0;
  std::uint64_t num_stores_in_flight = 0;  ///< Transfers.
  std::uint64_t num_loads_in_flight = 0;   ///< Transfers.
  std::uint64_t num_backlog = 0;
  std::uint64_t ready_ranks = 0;
  std::uint64_t hit_tokens = 0;    ///< Tokens whose load was planned.
  std::uint64_t stored = 0;        ///< Committed.
  std::uint64_t loaded = 0;        ///< Loaded on every rank.
  std::uint64_t skipped_ring = 0;  ///< Planned, but a rank's ring was full; back in the backlog.
  std::uint64_t skipped_exhausted = 0;    ///< The tier had no room; back in the backlog.
  std::uint64_t skipped_reallocated = 0;  ///< Left the engine's pool before their turn.
  std::uint64_t failed_stores = 0;
  std::uint64_t failed_loads = 0;   ///< Transfers.
  std::uint64_t stale_reports = 0;  ///< Reports that matched no waiting owner; dropped.
};

/// The scheduler side: decides what is stored, loaded, evicted and reported. One thread at a time
/// (the engine's scheduler thread); never blocks; makes no device call.
///
/// One step: on_preempted() and on_scheduled() for the requests of the step, then finish_plan().
/// Between two plans the engine calls lookup(), on_allocated(), on_finished() and fold() in any
/// order. Slots are reserved, and so evicted, only in finish_plan(): an answer of lookup() is firm
/// until then.
class SchedulerEngine {
 public:
  /// Throws ConfigError.
  explicit SchedulerEngine(SchedulerOptions options);
  ~SchedulerEngine();
  SchedulerEngine(const SchedulerEngine&) = delete;
  SchedulerEngine& operator=(const SchedulerEngine&) = delete;

  /// The engine's pool, by which backlog entries are checked; outlives this. Without one there is
  /// no backlog.
  void set_pool(const BlockPool* pool);

  /// A request arrives, or its id is used again: a new incarnation.
  void on_request(std::string_view engine_id, std::shared_ptr<const BlockHashes> hashes);
  [[nodiscard]] bool knows(std::string_view engine_id) const;
  /// Tokens that can be loaded beyond the first `num_local_tokens`: a multiple of the block, capped
  /// below the last of `num_tokens`. Holds nothing; O(1) while nothing was evicted and the request
  /// is the same. Unknown requests: 0.
  [[nodiscard]] std::uint32_t lookup(std::string_view engine_id, std::uint32_t num_local_tokens,
                                     std::uint32_t num_tokens);
  /// The engine allocated blocks (`table`: all of the request's, by position) and waits for a load
  /// of `num_external_tokens` (not 0) behind the local tokens of the last lookup(). If the answer
  /// does not hold any more the load is planned as a failed one, never skipped.
  void on_allocated(std::string_view engine_id, std::span<const BlockId> table,
                    std::uint32_t num_external_tokens);

  /// The engine took the request's blocks away.
  void on_preempted(std::string_view engine_id);
  /// The request runs in this step: `num_computed_tokens` before it and `num_scheduled_tokens` in
  /// it.
  void on_scheduled(std::string_view engine_id, TableUpdate update, std::span<const BlockId> blocks,
                    std::uint32_t num_computed_tokens, std::uint32_t num_scheduled_tokens);
  /// Ends the step: the encoded StepPlan for every rank.
  [[nodiscard]] std::string finish_plan();

  /// Applies the encoded reports of one step's ranks, in the order failures, commits and releases,
  /// retirements. Returns the engine ids whose load ended for an owner that nobody waits for any
  /// more: they must not reach the engine. Throws ProtocolError (a message that cannot be read, or
  /// contradicts its plan) or TopologyError; the engine cannot go on then.
  [[nodiscard]] std::vector<std::string> fold(std::span<const std::span<const std::byte>> reports);

  /// The engine finished the request: everything of it is released before this returns (G2).
  /// Idempotent.
  void on_finished(std::string_view engine_id);
  /// Empties the tier: stores in flight are aborted, loads in flight fail, running requests are not
  /// stored until they are computed anew.
  void reset_cache();

  [[nodiscard]] SchedulerSnapshot snapshot() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvferry::connector
