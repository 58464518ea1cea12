// SPDX-License-Identifier: Apache-2.0
#include "load_book.hpp"

#include <algorithm>
#include <utility>

namespace kvferry::connector {

LoadBook::~LoadBook() {
  for (auto& [transfer, load] : loads_) tier_.release(std::move(load.lease));
}

void LoadBook::begin(Request& request, LoadOrder order, cpu_tier::Lease lease) {
  const TransferId transfer = order.transfer;
  owners_.begin_load(request, transfer);
  loads_.emplace(transfer, Load{std::move(order), std::move(lease), RankRoll(world_size_)});
  begun_.push_back(transfer);
}

void LoadBook::plan(StepPlan& plan) {
  for (const TransferId transfer : begun_) {
    Load& load = loads_.at(transfer);
    load.sent = true;
    plan.loads.push_back(std::move(load.order));
    load.order = {transfer,
                  plan.loads.back().owner,
                  plan.loads.back().engine_request_id,
                  plan.loads.back().doomed,
                  plan.loads.back().group,
                  {}};
  }
  begun_.clear();
  plan.cancels = std::exchange(cancels_, {});
}

void LoadBook::cancel(TransferId transfer) {
  Load& load = loads_.at(transfer);
  if (load.sent) {
    cancels_.push_back({transfer, CancelKind::kAbort});
    return;
  }
  // No rank knows of it. The engine still waits for every rank's report, so the order stays,
  // without blocks.
  load.order.blocks.clear();
  tier_.release(std::move(load.lease));
}

void LoadBook::doom_all() {
  for (auto& [transfer, load] : loads_) {
    load.order.doomed = true;
    if (load.sent) cancels_.push_back({transfer, CancelKind::kDoom});
  }
}

bool LoadBook::mark_ended(RankId rank, const TransferEnded& ended) {
  const auto found = loads_.find(ended.transfer);
  if (found == loads_.end() || !found->second.sent) return false;
  if (!found->second.roll.ended(rank, ended.outcome)) return false;
  if (found->second.roll.all_ended()) ended_.push_back(ended.transfer);
  return true;
}

void LoadBook::settle_failures() {
  for (const TransferId transfer : ended_) {
    const Load& load = loads_.at(transfer);
    // Whether the slot or the way is bad is unknown: offering it again could fail for ever (policy
    // `recompute`).
    if (load.roll.any_failed()) tier_.forget(load.lease);
  }
}

void LoadBook::settle_ends(std::vector<std::string>& stale) {
  std::vector<std::string> waited_for;
  for (const TransferId transfer : ended_) {
    Load& load = loads_.at(transfer);
    if (load.roll.any_failed()) {
      ++num_failed_;
    } else if (load.roll.all_done()) {
      num_loaded_ += load.lease.size();
    }
    tier_.release(std::move(load.lease));
    const bool is_stale = owners_.end_load(load.order.owner, transfer) == LoadEnd::kStale;
    num_stale_ += is_stale ? 1 : 0;
    (is_stale ? stale : waited_for).push_back(std::move(load.order.engine_request_id));
    loads_.erase(transfer);
  }
  ended_.clear();
  // The engine knows ids only: a dropped id would take the report of its living owner along.
  std::erase_if(stale, [&waited_for](const std::string& id) {
    return std::find(waited_for.begin(), waited_for.end(), id) != waited_for.end();
  });
}

}  // namespace kvferry::connector
