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
#include "engine_tier.hpp"
#include "load_book.hpp"
#include "load_patience.hpp"
#include "load_sharing.hpp"
#include "lookups.hpp"
#include "promise_book.hpp"
#include "rank_patience.hpp"
#include "rank_register.hpp"
#include "request_table.hpp"
#include "store_book.hpp"
#include "store_planner.hpp"
#include "tier_resizer.hpp"
#include "transfer_ids.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvferry::connector {

/// The parts of the scheduler side, and what concerns several of them at once. A part knows those
/// that it is made with, and none that come after it.
struct SchedulerEngine::Parts {
  explicit Parts(SchedulerOptions given);

  // ---- requests ----

  /// Request::sync_keys(), for all parts that keep something of its keys.
  void sync_keys(Request& request);
  /// Keys are of these weights from now on.
  void take_weights(WeightsId now);
  /// The request waits for its turn from now on.
  void await_turn(const Request& request) {
    if (options.tier.max_awaited_share > 0 && request.load_limit > 0) lookups.await(request);
  }
  /// The request has a prompt of so many tokens.
  void note_prompt(Request& request, std::uint32_t num_tokens) const {
    if (options.stored_part != StoredPart::kPrompt) return;
    request.store_limit = std::min(request.limits.max_store, num_tokens) / options.hash_tokens;
  }
  /// At the end of its turn: what came to be known as complete after the last plan that names it
  /// (asynchronous scheduling).
  void offer_rest(Request& request);
  /// What a step adds to a table of a request that is not followed: it writes these blocks, now or
  /// later, but those of a whole table that hold the first `num_computed` tokens.
  void drop_added(TableUpdate update, GroupBlocks blocks, std::uint32_t num_computed);

  // ---- ranks ----

  /// Whose blocks a shared tier's are is known when every rank has registered. It does so in the
  /// first step, which needs no token: a request may be asked again after it, for `max_load_wait`.
  [[nodiscard]] bool may_wait_for_ranks();
  /// The tier has the slots that are ready on every rank.
  void grow_tier();
  /// The reports that are meant for this engine. Throws as fold(); nothing has changed then.
  [[nodiscard]] std::vector<StepReport> readable(
      std::span<const std::span<const std::byte>> encoded) const;
  /// Takes down what a rank says of itself and of its transfers, which are settled later.
  void mark(const StepReport& report);
  /// Throws ProtocolError for a report of a plan that was never made.
  void expect_known_plan(const StepReport& report) const;
  /// If a rank's memory or its link is not to be trusted any more: finds and stores nothing from
  /// now on.
  void heed_damage();
  /// A rank that kept silent for too long is lost: throws TimeoutError.
  void expect_ranks();
  void end_step();

  [[nodiscard]] std::uint64_t wasted_bytes(const cpu_tier::SlabSnapshot& slabs) const;
  /// Debug builds: what the books hold is what the tier counts (G10).
  void dcheck_consistent() const;

  const SchedulerOptions options;
  BlockPool* pool = nullptr;  ///< None before set_pool().
  WeightsId weights;          ///< That the model has now.
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
  PromiseBook promises;
  TierResizer resizer;
  PlanSeq last_seq;
  std::optional<RankPatience::Stamp> first_plan;
  std::uint64_t hit_tokens = 0;
  std::uint64_t stale_reports = 0;
  std::vector<std::string> warnings;   ///< Not taken yet.
  std::uint32_t num_first_chunks = 0;  ///< Of the tier, ready on every rank without an order.
  std::optional<std::chrono::steady_clock::time_point> first_asked;  ///< Before that.
  /// Of a tier that engines share. Last: it ends before what it tends.
  std::optional<cpu_tier::TierKeeper> keeper;
};

}  // namespace kvferry::connector
