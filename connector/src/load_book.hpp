// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/ids.hpp"
#include "kvferry/connector/owner.hpp"
#include "kvferry/connector/ownership_table.hpp"
#include "kvferry/connector/step_plan.hpp"
#include "kvferry/connector/step_report.hpp"
#include "kvferry/cpu_tier/cpu_tier.hpp"

#include "rank_roll.hpp"

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace kvferry::connector {

/// The loads under way: each owns its lease until every rank has ended it, or until it is cancelled
/// before its plan was sent.
class LoadBook {
 public:
  LoadBook(cpu_tier::CpuTier& tier, OwnershipTable& owners, std::uint32_t world_size)
      : tier_(tier), owners_(owners), world_size_(world_size) {}
  ~LoadBook();
  LoadBook(const LoadBook&) = delete;
  LoadBook& operator=(const LoadBook&) = delete;

  /// Starts the request's load; `order` enters the next plan. `lease` has one slot per block, or is
  /// empty if doomed.
  void begin(Request& request, LoadOrder order, cpu_tier::Lease lease);
  /// Moves the orders of loads begun since the last plan, and of cancellations, into `plan`.
  void plan(StepPlan& plan);
  /// Its owner is gone. What no rank has seen yet is not copied; the rest ends with its copies.
  void cancel(TransferId transfer);
  /// Tells the ranks to drop a store.
  void cancel_store(TransferId transfer) { cancels_.push_back({transfer, CancelKind::kAbort}); }
  /// Every load under way ends as a failure.
  void doom_all();

  /// False for a load or a word that nobody waits for.
  [[nodiscard]] bool mark_ended(RankId rank, const TransferEnded& ended);
  /// Of the loads that ended on all ranks: forgets the keys of the failed.
  void settle_failures();
  /// Gives their leases back and tells their owners; appends the engine ids of those that nobody
  /// waits for, unless a load that somebody waits for ended under the same id.
  void settle_ends(std::vector<std::string>& stale);

  [[nodiscard]] std::size_t num_in_flight() const { return loads_.size(); }
  [[nodiscard]] std::uint64_t num_loaded() const { return num_loaded_; }
  [[nodiscard]] std::uint64_t num_failed() const { return num_failed_; }
  [[nodiscard]] std::uint64_t num_stale() const { return num_stale_; }

 private:
  struct Load {
    LoadOrder order;  ///< Its blocks move into the plan.
    cpu_tier::Lease lease;
    RankRoll roll;
    bool sent = false;
  };

  cpu_tier::CpuTier& tier_;
  OwnershipTable& owners_;
  std::uint32_t world_size_;
  std::map<TransferId, Load> loads_;
  std::vector<TransferId> begun_;
  std::vector<CancelOrder> cancels_;
  std::vector<TransferId> ended_;
  std::uint64_t num_loaded_ = 0;
  std::uint64_t num_failed_ = 0;
  std::uint64_t num_stale_ = 0;
};

}  // namespace kvferry::connector
