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

/// The slots of one class, as a rank has them.
struct RankSlots {
  std::uint64_t slot_bytes = 0;  ///< Packed bytes of a block on this rank.
  std::uint32_t slots_per_chunk = 0;
};

/// The ranks of one node that hold the same bytes and keep one copy of them, and which of them a
/// rank is (cpu_tier/replica_board.hpp).
struct ReplicaPlace {
  std::uint32_t size = 1;  ///< 1: it keeps a copy of its own.
  std::uint32_t index = 0;
};

/// What a rank says of itself in its first report; the scheduler side compares it with what it was
/// told (G8).
struct RankTopology {
  std::uint32_t world_size = 0;
  std::uint32_t num_blocks = 0;  ///< Blocks of the engine's pool.
  std::vector<RankSlots> classes;
  std::uint32_t num_chunks = 0;   ///< Chunks of this rank's arena that are ready for use.
  std::uint32_t max_chunks = 0;   ///< Chunks that its arena can have.
  std::uint32_t ring_blocks = 0;  ///< Blocks of its largest class that the staging ring holds.
  ReplicaPlace replicas = {};
  /// Digest of how the bytes of a block lie on this rank, and of all else that only the rank sees
  /// of them. 0: the engine shares its tier with no other.
  std::uint64_t probe = 0;
  /// Those that become ready without an order, from the first on. 0: all.
  std::uint32_t first_chunks = 0;
  /// Chunks of this rank's memory that come and go together. 0: it stays as it is.
  std::uint32_t chunks_per_piece = 0;
};

/// How many blocks of a store this rank took, counted from the first. The rest it skipped for good.
/// Of ranks that share one copy each takes its own blocks only, and counts the others' as taken:
/// the least of all ranks is what was taken whole.
struct StoreGathered {
  TransferId transfer;
  std::uint32_t num_gathered = 0;
};

/// The end of a transfer on this rank: no device of the rank touches its memory any more.
struct TransferEnded {
  TransferId transfer;
  Outcome outcome = Outcome::kDone;
  std::string reason;
  /// Of a load, each once. Not empty: it has failed for them, and for nothing else.
  std::vector<DamagedSlot> damaged = {};
};

/// The end of a ChunkOrder on this rank.
struct ChunkEnded {
  ChunkOrder order;
  std::string failure;  ///< Why nothing has changed; empty: it was done.
};

/// What one rank saw since its last report. It names only transfers of plans that the rank has
/// executed. A store with `num_gathered` 0 ends by that; any other store and every load ends by its
/// TransferEnded.
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
  /// Chunks that are ready now; set when they have become more.
  std::optional<std::uint32_t> num_ready_chunks = std::nullopt;
  /// The last plan that this rank has bound. 0: it says nothing about that.
  PlanSeq executed = {};
  /// The lowest number of a transfer that this rank has not ended, of those of the plans up to
  /// `executed`; 0: there is none. So a rank that is slow is told from one that has forgotten.
  TransferId oldest_under_way = {};

  /// Nothing to say. Which plan was executed last is worth no report by itself.
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
