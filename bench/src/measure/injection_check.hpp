// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/transfer/transfer_engine.hpp"

#include "measure/pipeline_rig.hpp"

#include <cstdint>
#include <string>

namespace kvferry::bench {

/// What was damaged on purpose, and what the tags found of it.
struct InjectionCheck {
  std::uint64_t num_stored = 0;
  std::uint64_t num_loaded = 0;  ///< Blocks of loads; after a damaged block some may not have come.
  std::uint64_t num_injections = 0;
  std::uint64_t num_unchanged = 0;  ///< Blocks that an injection touched and did not change.
  std::uint64_t num_replaced = 0;   ///< Damaged blocks in the tier that were stored over.
  std::uint64_t num_left = 0;       ///< Damaged blocks in the tier at the end.
  std::uint64_t num_arrived = 0;    ///< Damaged blocks that a load brought, by the injector's log.
  std::uint64_t num_found = 0;      ///< Damaged blocks that the tags found.
  std::uint64_t num_missed = 0;     ///< Arrived and not found.
  std::uint64_t num_invented = 0;   ///< Found and not arrived.
};

[[nodiscard]] std::string to_text(const InjectionCheck& check);

/// Stores and loads every plan of the shape `num_rounds` times on a host device that damages blocks
/// with this probability, and compares its log with the tags, round by round. Throws ResourceError,
/// DeviceError or TimeoutError.
[[nodiscard]] InjectionCheck check_injections(PipelineShape shape,
                                              transfer::TransferOptions options, double probability,
                                              std::uint32_t num_rounds);

}  // namespace kvferry::bench
