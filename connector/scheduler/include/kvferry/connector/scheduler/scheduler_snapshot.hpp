// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/ids.hpp"
#include "kvferry/connector/scheduler/client_hint.hpp"
#include "kvferry/cpu_tier/slots/tier.hpp"
#include "kvferry/cpu_tier/slots/tier_snapshot.hpp"

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace kvferry::connector {

/// Everything there is to see, in one consistent view. Counters are since construction, in blocks
/// unless named otherwise.
struct SchedulerSnapshot {
  /// Of all slab classes together; what no class has counts as free slots of the first.
  cpu_tier::TierSnapshot tier;
  cpu_tier::SlabSnapshot slabs;
  /// Of the first rank's memory, at the ends of chunks: no slot has them.
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
  std::uint64_t skipped_exhausted = 0;  ///< The tier had no room; back in the backlog.
  std::uint64_t skipped_declined = 0;  ///< By the tier's policy, or after a block that it declined.
  std::uint64_t skipped_reallocated = 0;  ///< Left the engine's pool before their turn.
  std::uint64_t skipped_unwanted = 0;  ///< Neither their request nor the engine wants them stored.
  std::array<std::uint64_t, kNumHintActions> hints{};  ///< That were followed, by HintAction.
  std::uint64_t num_promises = 0;                      ///< Of sessions and requests.
  std::uint64_t hints_refused = 0;                     ///< Promises for which there was no room.
  std::uint64_t hints_without_effect = 0;              ///< Of sessions that have no promise.
  std::uint64_t hints_expired = 0;                     ///< Promises whose time was over.
  std::uint64_t failed_stores = 0;
  std::uint64_t failed_loads = 0;   ///< Transfers.
  std::uint64_t expired_loads = 0;  ///< Of these, those that had not begun within load_timeout.
  /// By rank: blocks that it loaded and that are not what was stored.
  std::vector<std::uint64_t> damaged_blocks;
  std::uint64_t stale_reports = 0;  ///< Words of ranks that matched no waiting owner; dropped.

  bool operator==(const SchedulerSnapshot&) const = default;
};

/// How large the tier is, and is to be.
struct TierSize {
  std::uint32_t num_chunks = 0;  ///< In use.
  std::uint32_t target_chunks = 0;
  std::uint32_t max_chunks = 0;      ///< What it can be told to have.
  std::uint32_t chunks_per_run = 0;  ///< Come and go together. 0: the size stays.
  std::uint32_t num_retiring = 0;    ///< Out of use, and not the machine's on every rank yet.
  std::uint32_t num_restoring = 0;   ///< Not ready on every rank yet.
  /// More chunks are to go, and each run of them has a slot that a transfer or a reservation names.
  bool is_blocked = false;
  /// The next steps change something. False if it waits for what is_blocked says.
  bool is_at_work = false;
  std::string failure;               ///< Why the last order failed on some rank.
  std::vector<RankId> silent_ranks;  ///< That have not ended what they were told.
};

}  // namespace kvferry::connector
