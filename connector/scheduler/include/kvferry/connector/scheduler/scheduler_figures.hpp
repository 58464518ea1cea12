// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/connector/scheduler/client_hint.hpp"
#include "kvferry/connector/scheduler/scheduler_snapshot.hpp"

#include <cstddef>
#include <cstdint>
#include <string>

namespace kvferry::connector {

/// Calls `visit(name, value)` for each figure of a snapshot, always in the same order. Names are
/// string literals or std::string; values are std::uint64_t. `max_slots`:
/// SchedulerEngine::max_slots().
template <class Visit>
void visit_figures(const SchedulerSnapshot& view, std::uint64_t max_slots, Visit visit) {
  visit("num_slots", view.tier.num_slots);
  visit("max_slots", max_slots);
  visit("num_free", view.tier.num_free);
  visit("num_writable", view.tier.num_writable);
  visit("num_aborted", view.tier.num_aborted);
  visit("num_evictable", view.tier.num_evictable);
  visit("num_leased", view.tier.num_leased);
  visit("num_dying", view.tier.num_dying);
  visit("num_quarantined", view.tier.num_quarantined);
  visit("wasted_bytes", view.wasted_bytes);
  std::uint64_t num_moved_chunks = 0;
  for (const auto& slab_class : view.slabs.classes) num_moved_chunks += slab_class.num_gained_total;
  visit("num_moved_chunks", num_moved_chunks);
  visit("num_chunks", view.slabs.num_chunks);
  visit("num_set_aside", view.tier.num_set_aside);
  visit("num_guests", view.tier.num_guests);
  visit("num_guests_total", view.tier.num_guests_total);
  visit("num_awaited", view.tier.num_awaited);
  visit("num_evicted_total", view.tier.num_evicted_total);
  visit("num_rule_switches_total", view.tier.num_rule_switches_total);
  visit("num_requests", view.num_requests);
  visit("num_tombstones", view.num_tombstones);
  visit("num_stores_in_flight", view.num_stores_in_flight);
  visit("num_loads_in_flight", view.num_loads_in_flight);
  visit("num_backlog", view.num_backlog);
  visit("ready_ranks", view.ready_ranks);
  visit("hit_tokens", view.hit_tokens);
  visit("stored", view.stored);
  visit("loaded", view.loaded);
  visit("load_waits", view.load_waits);
  visit("skipped_ring", view.skipped_ring);
  visit("skipped_exhausted", view.skipped_exhausted);
  visit("skipped_declined", view.skipped_declined);
  visit("skipped_reallocated", view.skipped_reallocated);
  visit("skipped_unwanted", view.skipped_unwanted);
  for (std::size_t i = 0; i < view.hints.size(); ++i) {
    visit(std::string("hints_") + kHintNames[i], view.hints[i]);
  }
  visit("num_promises", view.num_promises);
  visit("hints_refused", view.hints_refused);
  visit("hints_without_effect", view.hints_without_effect);
  visit("hints_expired", view.hints_expired);
  visit("num_promised", view.tier.num_promised);
  visit("num_stays", view.tier.num_stays);
  visit("num_stays_max", view.tier.num_stays_max);
  visit("num_won_total", view.tier.num_won_total);
  visit("num_lost_total", view.tier.num_lost_total);
  visit("num_early_total", view.tier.num_early_total);
  visit("failed_stores", view.failed_stores);
  visit("failed_loads", view.failed_loads);
  visit("expired_loads", view.expired_loads);
  visit("stale_reports", view.stale_reports);
  for (std::size_t rank = 0; rank < view.damaged_blocks.size(); ++rank) {
    visit("damaged_blocks/" + std::to_string(rank), view.damaged_blocks[rank]);
  }
}

}  // namespace kvferry::connector
