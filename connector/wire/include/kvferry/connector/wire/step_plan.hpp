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
  kNow,          ///< Computed by an earlier step and not written in this one: from the bind on.
  kAfterForward  ///< Completed by this step: from the save on, which follows the forward.
};

struct StoreOrder {
  TransferId transfer;
  Owner owner;
  SlabClassId slab_class;  ///< Of the blocks: their geometry, and where their slots are.
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
  std::vector<ClassBlocks> parts;  ///< None if there is nothing to copy.
};

/// A load that failed, to be told to the engine: every rank announces it in its next collect().
/// Only ranks can tell the engine of a failure, and only the scheduler side knows that there is one
/// and that the engine still waits.
struct FailureNotice {
  TransferId transfer;
  std::string engine_request_id;
};

/// What becomes of the memory of some chunks.
enum class ChunkChange : std::uint8_t {
  kRetire,  ///< No plan names their slots any more, and no device touches them: the rank gives the
            ///< memory back to the machine.
  kRestore  ///< The rank makes them ready again, or for the first time.
};

/// Consecutive chunks, which every rank retires or restores. It answers when it has
/// (StepReport::chunks), in this step or a later one. Until all ranks have answered no other order
/// names any of them, and no slot of them is in a plan.
struct ChunkOrder {
  ChunkId first;
  std::uint32_t count = 0;
  ChunkChange change = ChunkChange::kRetire;
  bool operator==(const ChunkOrder&) const = default;
};

/// What every rank does in one step. Travels inside the engine's connector metadata.
struct StepPlan {
  DomainId domain;
  PlanSeq seq;
  std::vector<StoreOrder> stores;  ///< kNow orders first.
  std::vector<LoadOrder> loads;
  /// Stores and loads that nobody wants any more: what is queued is dropped, what runs is waited
  /// for; they end all the same.
  std::vector<TransferId> cancels;
  /// Loads that have waited for too long: a rank that has not submitted any of one drops it, any
  /// other goes on with it; they end all the same.
  std::vector<TransferId> expiries;
  std::vector<FailureNotice> notices;
  std::vector<ChunkOrder> chunks;

  /// Nothing but a sequence number.
  [[nodiscard]] bool empty() const {
    return stores.empty() && loads.empty() && cancels.empty() && expiries.empty() &&
           notices.empty() && chunks.empty();
  }
};

/// Version of plan and report messages; both sides refuse another one.
inline constexpr std::uint16_t kWireVersion = 9;

/// Little-endian bytes.
[[nodiscard]] std::string encode(const StepPlan& plan);
/// Throws ProtocolError (what was wrong, where, the version met and known) and never reads beyond
/// `bytes`.
[[nodiscard]] StepPlan decode_plan(std::span<const std::byte> bytes);

}  // namespace kvferry::connector
