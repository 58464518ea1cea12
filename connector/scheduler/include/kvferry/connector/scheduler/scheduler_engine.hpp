// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/ids.hpp"
#include "kvferry/connector/scheduler/engine_view.hpp"
#include "kvferry/connector/scheduler/token_reach.hpp"
#include "kvferry/connector/wire/owner.hpp"
#include "kvferry/connector/wire/step_report.hpp"
#include "kvferry/cpu_tier/peers/tier_directory.hpp"
#include "kvferry/cpu_tier/policy/tier_options.hpp"
#include "kvferry/cpu_tier/slots/cpu_tier.hpp"
#include "kvferry/cpu_tier/slots/slab_tier.hpp"
#include "kvferry/cpu_tier/slots/tier_snapshot.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvferry::connector {

/// One KV cache group of the engine. All groups share the pool's pages and the block size.
struct KvGroup {
  TokenReach reach;
  /// Of its blocks' slots: groups of fewer layers have smaller blocks.
  SlabClassId slab_class{0};
};

/// Slots of one size.
struct SlabClass {
  std::uint32_t slots_per_chunk = 1;
  /// Packed bytes of one block, by rank.
  std::vector<std::uint64_t> slot_bytes;
};

/// Whether blocks that a streaming session computes in its later turns are stored. They are not
/// where the engine gets a later turn wrong: it goes on from a wrong recurrent state, or keeps a
/// block under a hash whose tokens the session has taken back.
enum class LaterTurns : std::uint8_t { kStored, kNotStored };

/// What the scheduler side is told; every rank's first report is compared with it (G8).
struct SchedulerOptions {
  DomainId domain;
  std::uint32_t world_size = 1;
  /// Tokens of one block, which is also the engine's hash granularity.
  std::uint32_t block_tokens = 0;
  /// Blocks of the engine's GPU pool.
  std::uint32_t num_blocks = 0;
  /// The largest first. One class alone has a slot in each chunk.
  std::vector<SlabClass> classes;
  /// By rank; empty: every rank keeps a copy of its own.
  std::vector<ReplicaPlace> replicas;
  /// Most chunks that the tier may come to have; the ranks' reports set how many are usable.
  std::uint32_t max_chunks = 0;
  /// The tier that engine instances share, of as many chunks; outlives the engine. None: the tier
  /// is this engine's own.
  cpu_tier::TierDirectory* shared_tier = nullptr;
  /// Which blocks the tier stores and evicts.
  cpu_tier::TierOptions tier;
  std::vector<KvGroup> groups{KvGroup{}};
  LaterTurns later_turns = LaterTurns::kStored;
  /// A rank that keeps silent for longer, about itself or about what it was sent, is lost. Silence
  /// counts while the engine steps, a sixteenth of this for one step at most, and 16 steps have to
  /// pass; a rest counts nothing. Longer than the ranks' own transfer_timeout (300 s by default),
  /// so that a rank that can speak names the transfer itself.
  std::chrono::nanoseconds rank_timeout = std::chrono::seconds(360);
  /// A load that some rank has not begun after so long fails; one that has begun goes on. Counted
  /// as the rank_timeout is.
  std::chrono::nanoseconds load_timeout = std::chrono::seconds(30);
  /// How long a request waits for another one's load of the same prefix at most; 0: not at all.
  std::chrono::nanoseconds max_load_wait = std::chrono::seconds(1);
  /// For tests; empty: std::chrono::steady_clock::now.
  std::function<std::chrono::steady_clock::time_point()> clock;
};

/// How the blocks of a scheduled request relate to its table.
enum class TableUpdate : std::uint8_t { kAppend, kReplace };

/// What a step does for a request, in tokens.
struct StepTokens {
  std::uint32_t num_computed = 0;   ///< Before it, as the engine counts.
  std::uint32_t num_scheduled = 0;  ///< In it, drafts included.
  std::uint32_t num_drafts = 0;     ///< The last ones of them, which may be taken back.
};

/// What a fold decided for the engine.
struct FoldResult {
  /// Engine ids whose load has ended for an owner that waits for it, or that was aborted while it
  /// loaded: to be told now. Those that failed have been announced by the ranks in this step.
  std::vector<std::string> ended;
  /// Engine ids that the ranks have announced in this step and that nobody waits for any more: not
  /// to be told, unless they are in `ended` too.
  std::vector<std::string> stale;
};

/// Everything there is to see, in one consistent view. Counters are since construction, in blocks
/// unless named otherwise.
struct SchedulerSnapshot {
  /// Of all slab classes together; what no class has counts as free slots of the first.
  cpu_tier::TierSnapshot tier;
  cpu_tier::SlabSnapshot slabs;
  /// Of the first rank's memory, behind the slots of the chunks.
  std::uint64_t wasted_bytes = 0;
  std::uint64_t num_requests = 0;
  std::uint64_t num_tombstones = 0;
  std::uint64_t num_stores_in_flight = 0;  ///< Transfers.
  std::uint64_t num_loads_in_flight = 0;   ///< Transfers.
  std::uint64_t num_backlog = 0;
  std::uint64_t ready_ranks = 0;
  std::uint64_t hit_tokens = 0;    ///< Tokens whose load was planned.
  std::uint64_t stored = 0;        ///< Committed.
  std::uint64_t loaded = 0;        ///< Loaded on every rank.
  std::uint64_t load_waits = 0;    ///< Requests that waited for another one's load.
  std::uint64_t skipped_ring = 0;  ///< Planned, but a rank's ring was full; back in the backlog.
  std::uint64_t skipped_exhausted = 0;    ///< The tier had no room; back in the backlog.
  std::uint64_t skipped_declined = 0;     ///< The tier's policy, or behind one that it declined.
  std::uint64_t skipped_reallocated = 0;  ///< Left the engine's pool before their turn.
  std::uint64_t failed_stores = 0;
  std::uint64_t failed_loads = 0;   ///< Transfers.
  std::uint64_t expired_loads = 0;  ///< Of these, those that had not begun within load_timeout.
  std::uint64_t stale_reports = 0;  ///< Words of ranks that matched no waiting owner; dropped.

  bool operator==(const SchedulerSnapshot&) const = default;
};

/// The scheduler side: decides what is stored, loaded, evicted and reported. One thread at a time
/// (the engine's scheduler thread); never blocks; makes no device call.
///
/// One step: on_preempted() and on_scheduled() for the requests of the step, on_state() for the
/// states that they leave, then finish_plan().
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

  /// A request arrives, or its id is used again: a new incarnation. What the tier holds of its
  /// prefix is evicted last (CpuTier::await()) until the request has run or is finished.
  void on_request(std::string_view engine_id, std::shared_ptr<const BlockHashes> hashes);
  [[nodiscard]] bool knows(std::string_view engine_id) const;
  /// Tokens that every group can have loaded beyond the first `num_local_tokens`: a multiple of the
  /// block, capped below the last of `num_tokens`. Holds nothing; O(1) while nothing was evicted
  /// and the request is the same. Unknown requests: 0. Nothing: another request loads them now, or
  /// the tier is shared and the ranks have yet to say how their blocks lie; ask again in the next
  /// step, for `max_load_wait` at most.
  [[nodiscard]] std::optional<std::uint32_t> lookup(std::string_view engine_id,
                                                    std::uint32_t num_local_tokens,
                                                    std::uint32_t num_tokens);
  /// The engine allocated blocks (`tables`: all of the request's, by group and position) and waits
  /// for a load of `num_external_tokens` (not 0) behind the local tokens of the last lookup(). If
  /// the answer does not hold any more the load fails, it is never skipped. Throws ProtocolError
  /// for a request that is unknown or loads already.
  void on_allocated(std::string_view engine_id, std::span<const std::span<const BlockId>> tables,
                    std::uint32_t num_external_tokens);
  /// For an engine with one group.
  void on_allocated(std::string_view engine_id, std::span<const BlockId> table,
                    std::uint32_t num_external_tokens) {
    on_allocated(engine_id, {&table, 1}, num_external_tokens);
  }

  /// lookup() without a question: so many tokens of the request are in the engine's own cache. What
  /// it has beyond them when it runs, and we have not loaded, another connector loads.
  void note_local(std::string_view engine_id, std::uint32_t num_local_tokens);
  /// Another connector failed to load these blocks: to be called before the fold() of the reports
  /// that came with them. What lies in them and behind them in a table is not stored, until it is
  /// computed anew.
  void on_blocks_invalid(std::span<const BlockId> blocks);

  /// The engine took the request's blocks away; it waits for its turn again.
  void on_preempted(std::string_view engine_id);
  /// The request runs in this step. `blocks`: by group, all of the request's or those added; empty:
  /// none in any group. Throws ProtocolError for another number of groups.
  void on_scheduled(std::string_view engine_id, TableUpdate update,
                    std::span<const std::span<const BlockId>> blocks, const StepTokens& tokens);
  /// Without drafts.
  void on_scheduled(std::string_view engine_id, TableUpdate update,
                    std::span<const std::span<const BlockId>> blocks,
                    std::uint32_t num_computed_tokens, std::uint32_t num_scheduled_tokens) {
    on_scheduled(engine_id, update, blocks, {num_computed_tokens, num_scheduled_tokens, 0});
  }
  /// For an engine with one group.
  void on_scheduled(std::string_view engine_id, TableUpdate update, std::span<const BlockId> blocks,
                    std::uint32_t num_computed_tokens, std::uint32_t num_scheduled_tokens) {
    on_scheduled(engine_id, update, {&blocks, 1}, num_computed_tokens, num_scheduled_tokens);
  }
  /// The engine says in which block of a group of recurrent state it leaves what the request's
  /// first `num_tokens` tokens give: behind this step's forward, or behind the step
  /// (TokenReach::settles_in_step()). Once for each state; nothing else of such a group is stored,
  /// because where a state lies cannot be told from the tables. Throws ProtocolError for a group
  /// that does not exist or has no state.
  void on_state(std::string_view engine_id, GroupId group, BlockId block, std::uint32_t num_tokens);
  /// Ends the step: the encoded StepPlan for every rank. Throws TimeoutError naming the rank, and
  /// what it owes, if one was silent for longer than the rank_timeout; the slots that it may still
  /// write are in quarantine then, until it ends them after all.
  [[nodiscard]] std::string finish_plan();

  /// Applies the encoded reports of one step's ranks, in the order failures, commits and releases,
  /// retirements. Once for the output of each plan, in their order: time-outs count outputs, so
  /// that one without any report is folded too. Throws ProtocolError (a message that cannot be
  /// read, or contradicts its plan) or TopologyError; the engine cannot go on then.
  [[nodiscard]] FoldResult fold(std::span<const std::span<const std::byte>> reports);

  /// The engine finished the request: everything of it is released before this returns (G2).
  /// `num_tokens`: those that the engine knows of it, the last one of which may not be computed; 0
  /// says nothing. With drafts it tells how many of them were taken. Idempotent.
  void on_finished(std::string_view engine_id, std::uint32_t num_tokens = 0);
  /// Empties the tier: stores in flight are aborted, loads in flight fail, running requests are not
  /// stored until they are computed anew.
  void reset_cache();
  /// CpuTier::take_key_events(): what can be loaded since the last call, and what cannot any more.
  [[nodiscard]] std::vector<cpu_tier::KeyEvent> take_key_events();

  [[nodiscard]] SchedulerSnapshot snapshot() const;
  /// Slots of the tier that are ready on every rank, if all were of the first class.
  [[nodiscard]] std::uint32_t num_slots() const;
  /// Whether a store or a load is under way. O(1).
  [[nodiscard]] bool is_busy() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvferry::connector
