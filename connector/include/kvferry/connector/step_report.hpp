// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/ids.hpp"
#include "kvferry/connector/owner.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace kvferry::connector {

/// What a rank says of itself in its first report; the scheduler side compares it with what it was
/// told (G8).
struct RankTopology {
  std::uint32_t world_size = 0;
  std::uint32_t num_blocks = 0;   ///< Blocks of the engine's pool.
  std::uint64_t slot_bytes = 0;   ///< Packed bytes of a block on this rank.
  std::uint32_t num_slots = 0;    ///< Slots of this rank's arena, ready for use.
  std::uint32_t ring_blocks = 0;  ///< Blocks that the staging ring holds.
};

/// How many blocks of a store this rank took, counted from the first. The rest it skipped for good.
struct StoreGathered {
  TransferId transfer;
  std::uint32_t num_gathered = 0;
};

enum class EndedAs : std::uint8_t { kDone, kFailed, kCancelled };

/// The end of a transfer on this rank: no device of the rank touches its memory any more.
struct TransferEnded {
  TransferId transfer;
  EndedAs outcome = EndedAs::kDone;
  std::string reason;
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

  [[nodiscard]] bool empty() const {
    return !topology && gathered.empty() && stores.empty() && loads.empty();
  }
};

[[nodiscard]] std::string encode(const StepReport& report);
/// Throws ProtocolError.
[[nodiscard]] StepReport decode_report(std::span<const std::byte> bytes);

}  // namespace kvferry::connector
