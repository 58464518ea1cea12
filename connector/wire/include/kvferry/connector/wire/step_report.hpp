// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/ids.hpp"
#include "kvferry/base/outcome.hpp"
#include "kvferry/connector/wire/owner.hpp"
#include "kvferry/connector/wire/step_plan.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace kvferry::connector {

/// The slots of one class on a rank.
struct RankSlots {
  std::uint64_t slot_bytes = 0;  ///< Packed bytes of a block on this rank.
  std::uint32_t slots_per_chunk = 0;
};

/// The ranks of one node that hold the same bytes and keep one copy of them, and the place of this
/// rank among them (cpu_tier/memory/src/replica_board.hpp).
struct ReplicaPlace {
  std::uint32_t size = 1;  ///< 1: the rank keeps its own copy.
  std::uint32_t index = 0;
};

/// What a rank reports about itself in its first report. The scheduler side compares it with its
/// own options (G8).
struct RankTopology {
  std::uint32_t world_size = 0;
  std::uint32_t num_blocks = 0;  ///< Blocks of the engine's pool.
  std::vector<RankSlots> classes;
  std::uint32_t num_chunks = 0;   ///< Chunks of this rank's arena that are ready for use.
  std::uint32_t max_chunks = 0;   ///< Chunks that its arena can have.
  std::uint32_t ring_blocks = 0;  ///< Blocks of its largest class that the staging ring holds.
  ReplicaPlace replicas = {};
  /// Digest of the layout of a block's bytes on this rank, and of everything else about them that
  /// only the rank sees. 0: the engine shares its tier with no other engine.
  std::uint64_t probe = 0;
  /// The number of chunks, from the first on, that become ready without an order. 0: all.
  std::uint32_t first_chunks = 0;
  /// Number of chunks of this rank's memory that are retired and restored together. 0: the memory
  /// cannot be resized.
  std::uint32_t chunks_per_piece = 0;
};

/// How many blocks of a store this rank took, counted from the first. It skipped the rest for good.
/// If ranks share one copy, each takes only its own blocks and counts the others' as taken; so the
/// blocks that were stored completely are the minimum over all ranks.
struct StoreGathered {
  TransferId transfer;
  std::uint32_t num_gathered = 0;
};

/// The end of a transfer on this rank: no device of the rank touches its memory any more.
struct TransferEnded {
  TransferId transfer;
  Outcome outcome = Outcome::kDone;
  std::string reason;
  /// The damaged slots of a load, each once. If it is not empty, the load failed for this reason
  /// only.
  std::vector<DamagedSlot> damaged = {};
};

/// The end of a ChunkOrder on this rank.
struct ChunkEnded {
  ChunkOrder order;
  std::string failure;  ///< Why nothing has changed; empty if the order was done.
};

/// What one rank saw since its last report. It names only transfers of plans that the rank has
/// executed. A store with `num_gathered` 0 ends with that; every other store and every load ends
/// with its TransferEnded.
struct StepReport {
  DomainId domain;
  RankId rank;
  std::optional<RankTopology> topology;
  std::vector<StoreGathered> gathered;
  std::vector<TransferEnded> stores;
  std::vector<TransferEnded> loads;
  /// FailureNotices that this rank has announced to the engine.
  std::vector<TransferId> announced;
  std::vector<ChunkEnded> chunks;
  /// Slots that the rank has read again without a load and found damaged.
  std::vector<DamagedSlot> scrubbed = {};
  /// The number of ready chunks. Set when it has increased.
  std::optional<std::uint32_t> num_ready_chunks = std::nullopt;
  /// The last plan that this rank has bound. 0: the report does not say it.
  PlanSeq executed = {};
  /// The lowest number of a transfer in the plans up to `executed` that this rank has not ended; 0:
  /// there is none. It distinguishes a slow rank from a rank that has forgotten a transfer.
  TransferId oldest_under_way = {};

  /// Whether there is nothing to report. `executed` alone is worth no report.
  [[nodiscard]] bool empty() const {
    return !topology && gathered.empty() && stores.empty() && loads.empty() && announced.empty() &&
           chunks.empty() && scrubbed.empty() && !num_ready_chunks &&
           oldest_under_way == TransferId();
  }
};

[[nodiscard]] std::string encode(const StepReport& report);
/// Throws ProtocolError.
[[nodiscard]] StepReport decode_report(std::span<const std::byte> bytes);

}  // namespace kvferry::connector
