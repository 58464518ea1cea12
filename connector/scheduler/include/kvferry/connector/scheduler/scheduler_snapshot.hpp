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

/// The whole state in one consistent view. Counters start at construction. They count blocks unless
/// their name or comment says otherwise.
struct SchedulerSnapshot {
  /// All slab classes together. Memory that no class has counts as free slots of the first class.
  cpu_tier::TierSnapshot tier;
  cpu_tier::SlabSnapshot slabs;
  /// Bytes of the first rank's memory at the ends of chunks, which no slot uses.
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
  std::uint64_t skipped_ring = 0;  ///< Planned, but a rank's ring was full; again in the backlog.
  std::uint64_t skipped_exhausted = 0;  ///< The tier had no room; again in the backlog.
  std::uint64_t skipped_declined = 0;  ///< The tier's policy declined them, or a block before them.
  std::uint64_t skipped_reallocated = 0;  ///< They left the engine's pool before their turn.
  std::uint64_t skipped_unwanted = 0;  ///< Their request or the engine does not want them stored.
  std::array<std::uint64_t, kNumHintActions> hints{};  ///< Hints that were followed, by HintAction.
  std::uint64_t num_promises = 0;                      ///< Promises of sessions and requests.
  /// Promises that were refused, or ended early, for lack of room.
  std::uint64_t hints_refused = 0;
  std::uint64_t hints_without_effect = 0;  ///< Hints for sessions without a promise.
  std::uint64_t hints_expired = 0;         ///< Promises whose time was over.
  std::uint64_t failed_stores = 0;
  std::uint64_t failed_loads = 0;  ///< Transfers.
  /// Transfers that failed because they had not begun within load_timeout.
  std::uint64_t expired_loads = 0;
  /// By rank: loaded blocks that differ from what was stored.
  std::vector<std::uint64_t> damaged_blocks;
  /// Reports about nothing that is under way, such as late ones for finished requests; ignored.
  std::uint64_t stale_reports = 0;

  bool operator==(const SchedulerSnapshot&) const = default;
};

/// The size of the tier now, and its target.
struct TierSize {
  std::uint32_t num_chunks = 0;  ///< Chunks in use.
  std::uint32_t target_chunks = 0;
  std::uint32_t max_chunks = 0;      ///< The largest possible target.
  std::uint32_t chunks_per_run = 0;  ///< Chunks that are resized together. 0: the size is fixed.
  std::uint32_t num_retiring = 0;    ///< Out of use, but not yet given back by every rank.
  std::uint32_t num_restoring = 0;   ///< Not yet ready on every rank.
  /// More chunks are to be retired, but each run of them has a slot that a transfer or a
  /// reservation names.
  bool is_blocked = false;
  /// Whether the next steps change something. False while only is_blocked delays it.
  bool is_at_work = false;
  std::string failure;               ///< Why the last order failed on some rank.
  std::vector<RankId> silent_ranks;  ///< Ranks that have not ended their orders.
};

}  // namespace kvferry::connector
