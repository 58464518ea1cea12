// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/ids.hpp"
#include "kvferry/connector/scheduler/client_hint.hpp"
#include "kvferry/connector/scheduler/engine_step.hpp"
#include "kvferry/connector/scheduler/engine_view.hpp"
#include "kvferry/connector/scheduler/scheduler_options.hpp"
#include "kvferry/connector/scheduler/scheduler_snapshot.hpp"
#include "kvferry/cpu_tier/slots/tier.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvferry::connector {

/// What becomes of the blocks of the weights that a model has had.
enum class OldBlocks : std::uint8_t {
  kKept,      ///< They are found when the weights come back.
  kForgotten  ///< They never do: the blocks leave the tier, and stores of them are aborted.
};

/// The scheduler side: decides what is stored, loaded, evicted and reported. One thread at a time
/// (the engine's scheduler thread); never blocks; makes no device call.
///
/// One step: on_preempted() and on_scheduled() for the requests of the step, on_state() for the
/// states that they leave, then finish_plan().
/// Between two plans the engine calls lookup(), on_allocated(), on_finished() and fold() in any
/// order. Slots are reserved only in finish_plan(). The keeper of a shared tier gives up chunks on
/// its own thread, but not between a lookup() and the end of its step (Tier::hold_still()): until
/// finish_plan() nothing that a lookup() found is evicted.
class SchedulerEngine {
 public:
  /// Throws ConfigError.
  explicit SchedulerEngine(SchedulerOptions options);
  ~SchedulerEngine();
  SchedulerEngine(const SchedulerEngine&) = delete;
  SchedulerEngine& operator=(const SchedulerEngine&) = delete;

  /// The engine's pool, by which backlog entries are checked; outlives this. Without one there is
  /// no backlog.
  void set_pool(BlockPool* pool);

  /// A request arrives, or its id is used again: a new incarnation. What the tier holds of its
  /// prefix, and may be loaded, is evicted last (Tier::await()) until the request has run or is
  /// finished.
  void on_request(std::string_view engine_id, std::shared_ptr<const BlockHashes> hashes,
                  const RequestLimits& limits = {});
  /// What the client of a request that has just arrived says of blocks. `session`: to which the
  /// request belongs; empty: to none. What a hint promises ends with its time, when the session
  /// says so, or with reset_cache(). Unknown requests: nothing.
  void on_hints(std::string_view engine_id, std::string_view session,
                std::span<const ClientHint> hints);
  [[nodiscard]] bool knows(std::string_view engine_id) const;
  /// Tokens that every group can have loaded beyond the first `num_local_tokens`: they end with a
  /// block of every group, at the last of `num_tokens` at most (BlockGroups::num_loadable()), and
  /// are no more than the request wants (RequestLimits::max_load). Holds nothing; O(1) while
  /// nothing was evicted and the request is the same. Unknown requests: 0. Nothing: another request
  /// loads them now, or the tier is shared and the ranks have yet to say how their blocks lie; ask
  /// again in the next step, for `max_load_wait` at most.
  [[nodiscard]] std::optional<std::uint32_t> lookup(std::string_view engine_id,
                                                    std::uint32_t num_local_tokens,
                                                    std::uint32_t num_tokens);
  /// The engine allocated blocks (`tables`: all of the request's, by group and position) and waits
  /// for a load of `num_external_tokens` (not 0) after the local tokens of the last lookup(). If
  /// the answer does not hold any more the load fails, it is never skipped. Throws ProtocolError
  /// for a request that is unknown or loads already.
  void on_allocated(std::string_view engine_id, GroupBlocks tables,
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
  /// that came with them. What lies in them and after them in a table is not stored, until it is
  /// computed anew.
  void on_blocks_invalid(std::span<const BlockId> blocks);

  /// The engine took the request's blocks away; it waits for its turn again.
  void on_preempted(std::string_view engine_id);
  /// The request runs in this step. `blocks`: by group, all of the request's or those added; empty:
  /// none in any group. Throws ProtocolError for another number of groups.
  void on_scheduled(std::string_view engine_id, TableUpdate update, GroupBlocks blocks,
                    const StepTokens& tokens);
  /// Without drafts.
  void on_scheduled(std::string_view engine_id, TableUpdate update, GroupBlocks blocks,
                    std::uint32_t num_computed_tokens, std::uint32_t num_scheduled_tokens) {
    on_scheduled(engine_id, update, blocks, {num_computed_tokens, num_scheduled_tokens, 0});
  }
  /// For an engine with one group.
  void on_scheduled(std::string_view engine_id, TableUpdate update, std::span<const BlockId> blocks,
                    std::uint32_t num_computed_tokens, std::uint32_t num_scheduled_tokens) {
    on_scheduled(engine_id, update, {&blocks, 1}, num_computed_tokens, num_scheduled_tokens);
  }
  /// The engine says in which block of a group of recurrent state it leaves what the request's
  /// first `num_tokens` tokens give: after this step's forward, or after the step
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
  /// The model has other weights from here on, or may have: blocks that were stored so far are not
  /// found until their weights are named again, and what the engine has computed so far is not
  /// stored. Loads in flight fail. A store in flight was gathered under its own weights and is
  /// found under them. No step is under way. Nothing if these are the weights already.
  void change_weights(WeightsId to, OldBlocks old_blocks);
  /// From now on the tier is to have so many chunks, as far as the ranks' memory goes;
  /// finish_plan() takes some in or out of use in each step, the coldest first. What a transfer
  /// touches stays until that has ended. Nothing changes if a rank's memory stays as it is.
  void resize(std::uint32_t num_chunks);
  [[nodiscard]] TierSize tier_size() const;
  /// Tier::take_key_events(): what can be loaded since the last call, and what cannot any more.
  [[nodiscard]] std::vector<cpu_tier::KeyEvent> take_key_events();

  /// What the user should read in the log, since the last call; in full sentences.
  [[nodiscard]] std::vector<std::string> take_warnings();

  [[nodiscard]] SchedulerSnapshot snapshot() const;
  /// Slots of the tier that are ready on every rank, if all were of the first class.
  [[nodiscard]] std::uint32_t num_slots() const;
  /// The same of those that will be, by resize() or without it: as told, until every rank has said
  /// how many it will have.
  [[nodiscard]] std::uint32_t max_slots() const;
  /// Whether a store or a load is under way. O(1).
  [[nodiscard]] bool is_busy() const;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace kvferry::connector
