// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/ids.hpp"
#include "kvferry/connector/wire/owner.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace kvferry::connector {

/// When the blocks of a store may be gathered.
enum class StoreReadiness : std::uint8_t {
  kNow,  ///< From the bind on: an earlier step computed them, and this one does not write them.
  kAfterForward  ///< From the save on, after the forward: this step completes them.
};

struct StoreOrder {
  TransferId transfer;
  Owner owner;
  SlabClassId slab_class;  ///< Gives the blocks' geometry and the place of their slots.
  StoreReadiness readiness = StoreReadiness::kAfterForward;
  std::vector<BlockSlot> blocks;
};

/// Blocks of one slab class and their slots.
struct ClassBlocks {
  SlabClassId slab_class;
  std::vector<BlockSlot> blocks;
};

struct LoadOrder {
  TransferId transfer;
  Owner owner;
  std::vector<ClassBlocks> parts;  ///< Empty if there is nothing to copy.
};

/// A load that failed. Every rank announces it to the engine in its next collect(). Only ranks can
/// tell the engine of a failure, and only the scheduler side knows of it and knows that the engine
/// still waits.
struct FailureNotice {
  TransferId transfer;
  std::string engine_request_id;
};

/// What happens to the memory of some chunks.
enum class ChunkChange : std::uint8_t {
  kRetire,  ///< No plan names their slots any more, and no device touches them: the rank gives the
            ///< memory back to the machine.
  kRestore  ///< The rank makes them ready, again or for the first time.
};

/// Consecutive chunks, which every rank retires or restores. A rank answers when it is done
/// (StepReport::chunks), in this step or a later one. Until all ranks have answered, no other order
/// names any of these chunks, and no plan names their slots.
struct ChunkOrder {
  ChunkId first;
  std::uint32_t count = 0;
  ChunkChange change = ChunkChange::kRetire;
  bool operator==(const ChunkOrder&) const = default;
};

/// What every rank does in one step. It travels inside the engine's connector metadata.
struct StepPlan {
  DomainId domain;
  PlanSeq seq;
  std::vector<StoreOrder> stores;  ///< The kNow orders are first.
  std::vector<LoadOrder> loads;
  /// Stores and loads that are cancelled: a rank drops their queued copies and waits for the
  /// running ones. They end all the same.
  std::vector<TransferId> cancels;
  /// Loads that have waited for too long. A rank that has not submitted any copy of the load drops
  /// it; another rank continues it. They end all the same.
  std::vector<TransferId> expiries;
  std::vector<FailureNotice> notices;
  std::vector<ChunkOrder> chunks;

  /// Whether there is nothing but a sequence number.
  [[nodiscard]] bool empty() const {
    return stores.empty() && loads.empty() && cancels.empty() && expiries.empty() &&
           notices.empty() && chunks.empty();
  }
};

/// The version of plan and report messages. Both sides refuse another version.
inline constexpr std::uint16_t kWireVersion = 9;

/// Encodes into little-endian bytes.
[[nodiscard]] std::string encode(const StepPlan& plan);
/// Throws ProtocolError, which says what was wrong and where; for another version, with both
/// versions. Never reads beyond `bytes`.
[[nodiscard]] StepPlan decode_plan(std::span<const std::byte> bytes);

}  // namespace kvferry::connector
