// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/ids.hpp"
#include "kvferry/connector/owner.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace kvferry::connector {

/// When the blocks of a store may be gathered.
enum class StoreReadiness : std::uint8_t {
  kNow,          ///< Computed by an earlier step and not written in this one: from the bind on.
  kAfterForward  ///< Completed by this step: in wait_for_save.
};

/// Why a load is cancelled.
enum class CancelKind : std::uint8_t {
  kAbort,  ///< Its request is gone: report it, nobody looks at the bytes.
  kDoom    ///< Its slots were reset: report it as failed.
};

struct StoreOrder {
  TransferId transfer;
  Owner owner;
  GroupId group;
  StoreReadiness readiness = StoreReadiness::kAfterForward;
  std::vector<BlockSlot> blocks;
};

struct LoadOrder {
  TransferId transfer;
  Owner owner;
  std::string engine_request_id;  ///< By which the rank reports it to the engine.
  bool doomed = false;            ///< Copy nothing and report a failure.
  GroupId group;
  std::vector<BlockSlot> blocks;
};

struct CancelOrder {
  TransferId transfer;
  CancelKind kind = CancelKind::kAbort;
};

/// What every rank does in one step. Travels inside the engine's connector metadata.
struct StepPlan {
  DomainId domain;
  PlanSeq seq;
  std::vector<StoreOrder> stores;  ///< kNow orders first.
  std::vector<LoadOrder> loads;
  std::vector<CancelOrder> cancels;

  /// Nothing but a sequence number.
  [[nodiscard]] bool empty() const { return stores.empty() && loads.empty() && cancels.empty(); }
};

/// Version of plan and report messages; both sides refuse another one.
inline constexpr std::uint16_t kWireVersion = 1;

/// Little-endian bytes.
[[nodiscard]] std::string encode(const StepPlan& plan);
/// Throws ProtocolError (what was wrong, where, the version met and known) and never reads beyond
/// `bytes`.
[[nodiscard]] StepPlan decode_plan(std::span<const std::byte> bytes);

}  // namespace kvferry::connector
