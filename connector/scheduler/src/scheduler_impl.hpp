// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/ids.hpp"
#include "kvferry/connector/scheduler/scheduler_engine.hpp"
#include "kvferry/connector/wire/step_plan.hpp"
#include "kvferry/connector/wire/step_report.hpp"
#include "kvferry/cpu_tier/slots/cpu_tier.hpp"

#include "backlog.hpp"
#include "block_groups.hpp"
#include "block_prover.hpp"
#include "class_tiers.hpp"
#include "load_book.hpp"
#include "load_patience.hpp"
#include "load_sharing.hpp"
#include "lookups.hpp"
#include "rank_patience.hpp"
#include "rank_register.hpp"
#include "request_table.hpp"
#include "store_book.hpp"
#include "store_planner.hpp"
#include "transfer_ids.hpp"

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

/// The scheduler side: passes on what the engine says to its parts.
class SchedulerEngine::Impl {
 public:
  explicit Impl(SchedulerOptions options)
      : options_(std::move(options)),
        tiers_(options_),
        groups_(options_.groups, options_.block_tokens),
        backlog_(options_.num_blocks),
        requests_(options_.domain, options_.groups.size()),
        prover_(requests_, groups_, options_.num_blocks, options_.later_turns),
        lookups_(tiers_, groups_),
        ranks_(options_),
        patience_(options_.rank_timeout, options_.clock, options_.world_size),
        load_patience_(options_.load_timeout, options_.clock),
        stores_(tiers_, backlog_, options_.world_size),
        planner_(options_.domain, tiers_, groups_, prover_, backlog_, stores_, transfers_),
        loads_(tiers_, requests_, options_.world_size),
        sharing_(loads_, options_.max_load_wait, options_.clock) {}

  void set_pool(const BlockPool* pool) {
    pool_ = pool;
    planner_.set_pool(pool);
  }
  void on_request(std::string_view engine_id, std::shared_ptr<const BlockHashes> hashes);
  RequestTable& requests() { return requests_; }

  std::optional<std::uint32_t> lookup(std::string_view engine_id, std::uint32_t num_local_tokens,
                                      std::uint32_t num_tokens);
  /// Whose blocks a shared tier's are is known when every rank has registered. It does so in the
  /// first step, which needs no token: a request may be asked again behind it, for `max_load_wait`.
  [[nodiscard]] bool may_wait_for_ranks();
  void note_local(std::string_view engine_id, std::uint32_t num_local_tokens);
  void on_blocks_invalid(std::span<const BlockId> blocks);
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
  /// A rank that kept silent for too long is lost: throws TimeoutError.
  void expect_ranks();
  /// Throws ProtocolError for a report of a plan that was never made.
  void expect_known_plan(const StepReport& report) const;
  void end_step();
  /// What a step adds to a table of a request that is not followed: it writes these blocks, now or
  /// later, after the first `first_written` of a whole table.
  void drop_added(TableUpdate update, GroupBlocks blocks, std::uint32_t first_written);
  void offer_rest(Request& request);
  /// The tier has the slots that are ready on every rank.
  void grow_tier();
  /// Request::sync_keys(), for all that keeps something of its keys.
  void sync_keys(Request& request);
  /// The request waits for its turn from now on.
  void await_turn(Request& request) {
    if (options_.tier.max_awaited_share > 0) lookups_.await(request);
  }
  SchedulerOptions options_;
  const BlockPool* pool_ = nullptr;
  ClassTiers tiers_;
  BlockGroups groups_;
  Backlog backlog_;
  RequestTable requests_;
  BlockProver prover_;
  Lookups lookups_;
  RankRegister ranks_;
  RankPatience patience_;
  LoadPatience load_patience_;
  TransferIds transfers_;
  StoreBook stores_;
  StorePlanner planner_;
  LoadBook loads_;
  LoadSharing sharing_;
  PlanSeq last_seq_;
  std::optional<RankPatience::Stamp> first_plan_;
  std::uint64_t hit_tokens_ = 0;
  std::uint64_t stale_reports_ = 0;
  std::uint32_t num_chunks_ = 0;                                      ///< Of the tier, usable now.
  std::optional<std::chrono::steady_clock::time_point> first_asked_;  ///< Before that.
};

}  // namespace kvferry::connector
