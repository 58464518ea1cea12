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

/// What happens to the blocks of earlier weights of a model.
enum class OldBlocks : std::uint8_t {
  kKept,      ///< They are found again if the weights come back.
  kForgotten  ///< The weights never come back: their blocks leave the tier, their stores are
              ///< aborted.
};

/// How many requests, loads and stores SchedulerEngine::books() names.
inline constexpr std::size_t kMostInBooks = 10;

/// How much is checked.
enum class CheckDepth : std::uint8_t { kCounts, kAll };

/// The scheduler side: decides what is stored, loaded, evicted and reported. One thread at a time
/// (the engine's scheduler thread); never blocks; makes no device call.
///
/// One step: on_preempted() and on_scheduled() for the requests of the step, on_state() for the
/// states that they leave, then finish_plan(). Between two plans the engine calls lookup(),
/// on_allocated(), on_finished() and fold() in any order. Slots are reserved only in finish_plan().
/// The keeper of a shared tier works on its own thread, between two calls. It gives up no chunk
/// between a lookup() and the end of its step (Tier::hold_still()): until finish_plan(), no block
/// that a lookup() found is evicted.
///
/// A call that names a block that the engine's pool does not have throws ProtocolError and changes
/// nothing.
class SchedulerEngine {
 public:
  /// Throws ConfigError.
  explicit SchedulerEngine(SchedulerOptions options);
  ~SchedulerEngine();
  SchedulerEngine(const SchedulerEngine&) = delete;
  SchedulerEngine& operator=(const SchedulerEngine&) = delete;

  /// Sets the engine's pool, with which backlog entries are checked. It outlives this object.
  /// Without a pool there is no backlog.
  void set_pool(BlockPool* pool);

  /// A request arrives, or its id is used again, which starts a new incarnation. The blocks of its
  /// prefix that the tier holds and that may be loaded are evicted last (Tier::await()), until the
  /// request has run or is finished.
  void on_request(std::string_view engine_id, std::shared_ptr<const BlockHashes> hashes,
                  const RequestLimits& limits = {});
  /// The hints of the client of a request that has just arrived. `session` is the session of the
  /// request; empty: none. A promise ends when its time is over, when the session ends it, or with
  /// reset_cache(). Unknown requests are ignored.
  void on_hints(std::string_view engine_id, std::string_view session,
                std::span<const ClientHint> hints);
  [[nodiscard]] bool knows(std::string_view engine_id) const;
  /// The number of tokens that every group can have loaded after the first `num_local_tokens`. They
  /// end with a block of every group, within `num_tokens` (BlockGroups::num_loadable()), and are no
  /// more than the request wants (RequestLimits::max_load). It holds no slot. O(1) while nothing
  /// was evicted and the request is the same. Unknown requests: 0. Nothing: ask again in the next
  /// step. Another request is loading them, or the tier is shared and the ranks have not yet
  /// reported the layout of their blocks (both for `max_load_wait` at most), or nothing runs while
  /// requests that were loaded wait behind this one (for one step).
  [[nodiscard]] std::optional<std::uint32_t> lookup(std::string_view engine_id,
                                                    std::uint32_t num_local_tokens,
                                                    std::uint32_t num_tokens);
  /// The engine allocated blocks (`tables`: all of the request's, by group and position) and waits
  /// for a load of `num_external_tokens` (not 0) after the local tokens of the last lookup(). If
  /// the answer is no longer valid, the load fails; it is never skipped. Throws ProtocolError if
  /// the request is unknown or already loads, or for no tokens.
  void on_allocated(std::string_view engine_id, GroupBlocks tables,
                    std::uint32_t num_external_tokens);
  /// The same for an engine with one group.
  void on_allocated(std::string_view engine_id, std::span<const BlockId> table,
                    std::uint32_t num_external_tokens) {
    on_allocated(engine_id, {&table, 1}, num_external_tokens);
  }

  /// Replaces lookup() when there is nothing to ask: the engine's own cache has this many tokens of
  /// the request. If the request has more tokens when it runs, and we have not loaded them, another
  /// connector loads them. False: ask again in the next step, as lookup() says.
  [[nodiscard]] bool note_local(std::string_view engine_id, std::uint32_t num_local_tokens);
  /// Another connector failed to load these blocks. To be called before the fold() of the reports
  /// of the same step. These blocks, and those after them in a table, are not stored until they are
  /// computed anew.
  void on_blocks_invalid(std::span<const BlockId> blocks);

  /// The engine took the request's blocks away, and the request waits for its turn again.
  void on_preempted(std::string_view engine_id);
  /// The request runs in this step. `blocks` are by group: all of the request's, or those that were
  /// added; empty: none in any group. Throws ProtocolError for another number of groups.
  void on_scheduled(std::string_view engine_id, TableUpdate update, GroupBlocks blocks,
                    const StepTokens& tokens);
  /// The same without drafts.
  void on_scheduled(std::string_view engine_id, TableUpdate update, GroupBlocks blocks,
                    std::uint32_t num_computed_tokens, std::uint32_t num_scheduled_tokens) {
    on_scheduled(engine_id, update, blocks, {num_computed_tokens, num_scheduled_tokens, 0});
  }
  /// The same for an engine with one group.
  void on_scheduled(std::string_view engine_id, TableUpdate update, std::span<const BlockId> blocks,
                    std::uint32_t num_computed_tokens, std::uint32_t num_scheduled_tokens) {
    on_scheduled(engine_id, update, {&blocks, 1}, num_computed_tokens, num_scheduled_tokens);
  }
  /// The engine says in which block of a group of recurrent state it leaves the state after the
  /// request's first `num_tokens` tokens: after this step's forward, or after the step
  /// (TokenReach::settles_in_step()). Call it once for each state. Nothing else of such a group is
  /// stored, because the tables do not show where a state is. Throws ProtocolError for a group that
  /// does not exist or has no state.
  void on_state(std::string_view engine_id, GroupId group, BlockId block, std::uint32_t num_tokens);
  /// Ends the step. Returns the encoded StepPlan for every rank. Throws TimeoutError if a rank was
  /// silent for longer than the rank_timeout, with the rank and what it owes. The slots that it may
  /// still write are then in quarantine, until it ends them after all.
  [[nodiscard]] std::string finish_plan();

  /// Applies the encoded reports of one step's ranks, in the order failures, commits and releases,
  /// retirements. Call it once for the output of each plan, in their order, also without any
  /// report, because time-outs count outputs. Throws ProtocolError (a message that cannot be read,
  /// or contradicts its plan) or TopologyError; then the engine cannot continue.
  [[nodiscard]] FoldResult fold(std::span<const std::span<const std::byte>> reports);

  /// The engine finished the request: everything of it is released before this returns (G2).
  /// `num_tokens` is how many of its tokens the engine knows, of which the last one may not be
  /// computed; 0: unknown. With drafts it shows how many of them were accepted. Idempotent.
  void on_finished(std::string_view engine_id, std::uint32_t num_tokens = 0);
  /// Empties the tier. Stores in flight are aborted, loads in flight fail, and running requests are
  /// not stored until they are computed anew.
  void reset_cache();
  /// The model has other weights from now on, or may have. Blocks that were stored so far are not
  /// found until their weights are named again, and blocks that the engine has computed so far are
  /// not stored. Loads in flight fail. A store in flight was gathered under its own weights and is
  /// found under them. To be called while no step is under way. Does nothing if the model has these
  /// weights already.
  void change_weights(WeightsId to, OldBlocks old_blocks);
  /// The work of a shared tier's keeper (Tier::tend()), for a replay: otherwise the keeper does it.
  void tend();
  /// From now on the tier is to have this many chunks, as far as the ranks' memory allows. Each
  /// finish_plan() takes some into use or out of use, the coldest first. A chunk that a transfer
  /// touches stays until the transfer has ended. Nothing changes if the memory of a rank cannot be
  /// resized.
  void resize(std::uint32_t num_chunks);
  [[nodiscard]] TierSize tier_size() const;
  /// Tier::take_key_events(): the keys that have become loadable since the last call, and those
  /// that no longer are.
  [[nodiscard]] std::vector<cpu_tier::KeyEvent> take_key_events();

  /// Warnings for the user's log since the last call, in full sentences.
  [[nodiscard]] std::vector<std::string> take_warnings();

  [[nodiscard]] SchedulerSnapshot snapshot() const;
  /// What is under way, as a JSON object: the `plan` that was made last; the oldest `requests`,
  /// `loads` and `stores`, kMostInBooks of each at most; the `figures` of snapshot(). A transfer
  /// has the number of its plan (0: none yet), its age in milliseconds in which the engine served,
  /// and the ranks that have not ended it. When a call throws, a recorder gets it too. For people:
  /// the names may change.
  [[nodiscard]] std::string books() const;
  /// Slots of the tier that are ready on every rank, if all slots were of the first class.
  [[nodiscard]] std::uint32_t num_slots() const;
  /// The same for the slots that will be ready, by resize() or without it. Until every rank has
  /// reported how many it will have, this is the configured number.
  [[nodiscard]] std::uint32_t max_slots() const;
  /// Checks what the parts hold against what the tier counts; any inconsistency is a broken
  /// invariant. With kAll it checks the whole tier too, in O(slots). For tests and replays.
  void check_invariants(CheckDepth depth) const;
  /// Whether a store or a load is under way. O(1).
  [[nodiscard]] bool is_busy() const;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace kvferry::connector
