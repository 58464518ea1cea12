// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/ids.hpp"
#include "kvferry/connector/scheduler/scheduler_engine.hpp"
#include "kvferry/connector/wire/step_plan.hpp"
#include "kvferry/connector/wire/step_report.hpp"
#include "kvferry/cpu_tier/peers/tier_keeper.hpp"
#include "kvferry/cpu_tier/slots/tier.hpp"

#include "backlog.hpp"
#include "block_groups.hpp"
#include "block_prover.hpp"
#include "call_journal.hpp"
#include "decision_journal.hpp"
#include "engine_tier.hpp"
#include "load_book.hpp"
#include "load_patience.hpp"
#include "load_sharing.hpp"
#include "loaded_queue.hpp"
#include "lookups.hpp"
#include "promise_book.hpp"
#include "rank_patience.hpp"
#include "rank_register.hpp"
#include "request_table.hpp"
#include "store_book.hpp"
#include "store_planner.hpp"
#include "tier_resizer.hpp"
#include "transfer_ids.hpp"
#include "watched_peers.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvferry::connector {

/// The parts of the scheduler side, and functions that concern several of them at once. A part
/// knows the parts that it is constructed with, and none that come after it.
struct SchedulerEngine::Parts {
  explicit Parts(SchedulerOptions given);

  /// Makes a call of the scheduler side. If it is recorded, the keeper's thread does not work
  /// meanwhile, so that no call's recording has the keeper's work in it. What it throws is
  /// recorded.
  template <class Call>
  auto in_turn(const Call& call) {
    std::unique_lock turn(turns, std::defer_lock);
    if (options.shared_tier != nullptr && calls.is_on()) turn.lock();
    try {
      return call();
    } catch (const std::exception& error) {
      threw(error);
      throw;
    }
  }

  // ---- requests ----

  /// Request::sync_keys(), for all parts that keep data about its keys.
  void sync_keys(Request& request);
  /// SchedulerEngine::on_finished().
  void finish(std::string_view engine_id, std::uint32_t num_tokens);
  /// SchedulerEngine::lookup() for a request that may load.
  [[nodiscard]] std::optional<std::uint32_t> look_up(Request& request,
                                                     std::uint32_t num_local_tokens,
                                                     std::uint32_t num_tokens);
  /// Keys are of these weights from now on.
  void take_weights(WeightsId now);
  /// The request waits for its turn from now on.
  void await_turn(const Request& request) {
    if (options.tier.max_awaited_share > 0 && request.load_limit > 0) lookups.await(request);
  }
  /// The request has a prompt of this many tokens.
  void note_prompt(Request& request, std::uint32_t num_tokens) const {
    if (options.stored_part != StoredPart::kPrompt) return;
    request.store_limit = std::min(request.limits.max_store, num_tokens) / options.hash_tokens;
  }
  /// Offers, at the end of a turn, the blocks that became known as complete after the last plan
  /// that names the request (asynchronous scheduling).
  void offer_rest(Request& request);
  /// Throws ProtocolError if the engine names a block that its pool does not have. To be called
  /// before anything has changed.
  void expect_in_pool(std::span<const BlockId> blocks) const;
  /// The same for the blocks of every group that is kept.
  void expect_in_pool(GroupBlocks blocks) const {
    for (const GroupId group : groups.ids()) {
      if (group.value() < blocks.size()) expect_in_pool(blocks[group.value()]);
    }
  }
  /// Handles the blocks that a step adds to a table of a request that is not followed. The request
  /// writes these blocks, now or later, except those of a whole table that hold the first
  /// `num_computed` tokens.
  void drop_added(TableUpdate update, GroupBlocks blocks, std::uint32_t num_computed);

  // ---- ranks ----

  /// The blocks of a shared tier have known owners only after every rank has registered. The ranks
  /// do that in the first step, which needs no token. So a request may be asked again after it, for
  /// `max_load_wait`.
  [[nodiscard]] bool may_wait_for_ranks();
  [[nodiscard]] std::chrono::steady_clock::time_point now() const {
    return options.clock ? options.clock() : std::chrono::steady_clock::now();
  }
  /// SchedulerEngine::tend().
  void tend();
  /// Gives the tier the slots that are ready on every rank.
  void grow_tier();
  /// The reports that are meant for this engine. Throws as fold() does; then nothing has changed.
  [[nodiscard]] std::vector<StepReport> readable(
      std::span<const std::span<const std::byte>> encoded) const;
  /// Notes what a rank reports about itself and its transfers, which are settled later.
  void mark(const StepReport& report);
  /// Throws ProtocolError for a report of a plan that was never made.
  void expect_known_plan(const StepReport& report) const;
  /// If a rank's memory or its link can no longer be trusted, the tier finds and stores nothing
  /// from now on.
  void heed_damage();
  /// Throws TimeoutError if a rank is lost because it was silent for too long.
  void expect_ranks();
  void end_step();

  // ---- questions ----

  [[nodiscard]] SchedulerSnapshot snapshot() const;
  [[nodiscard]] std::uint32_t max_slots() const;
  /// SchedulerEngine::books(), with so many of each at most.
  [[nodiscard]] std::string books(std::size_t most) const;
  /// The call throws this: it is recorded with the books.
  void threw(const std::exception& error);

  [[nodiscard]] std::uint64_t wasted_bytes(const cpu_tier::SlabSnapshot& slabs) const;
  /// Checks that the books hold what the tier counts (G10).
  void check_consistent() const;
  /// The same in debug builds.
  void dcheck_consistent() const;

  CallJournal calls;
  DecisionJournal decisions;
  const SchedulerOptions options;
  BlockPool* pool = nullptr;       ///< Null before set_pool().
  BlockPool* read_pool = nullptr;  ///< The same as it is read: its answers can be recorded.
  WeightsId weights;               ///< The model's present weights.
  std::mutex turns;                ///< Held by in_turn() if a keeper's work is recorded.
  PeerJournal peer_answers;
  const std::unique_ptr<cpu_tier::Tier> tier;
  BlockGroups groups;
  Backlog backlog;
  RequestTable requests;
  BlockProver prover;
  Lookups lookups;
  RankRegister ranks;
  RankPatience patience;
  LoadPatience load_patience;
  TransferIds transfers;
  StoreBook stores;
  StorePlanner planner;
  LoadBook loads;
  LoadSharing sharing;
  LoadedQueue loaded;
  PromiseBook promises;
  TierResizer resizer;
  PlanSeq last_seq;
  std::optional<RankPatience::Stamp> first_plan;
  std::uint64_t hit_tokens = 0;
  std::uint64_t stale_reports = 0;
  std::vector<std::string> warnings;  ///< Not taken yet.
  std::uint32_t num_first_chunks =
      0;  ///< The tier's chunks that every rank makes ready without an order.
  std::optional<std::chrono::steady_clock::time_point>
      first_asked;  ///< When it was first asked before that.
  /// For a tier that engines share. It is the last member, so that it ends before what it tends.
  std::optional<cpu_tier::TierKeeper> keeper;
};

}  // namespace kvferry::connector
