// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/gpu/device_loss.hpp"

#include <cstdint>
#include <string>

namespace kvferry::transfer {

/// Memory that is never used again because the device was lost with memory in doubt. A transfer
/// that the device could still be working on never ends, and its slots, blocks and ring entries are
/// never released. All other transfers end as failed.
struct Quarantine {
  gpu::DeviceLoss loss;
  std::uint64_t num_transfers = 0;  ///< Transfers that will never end.
  std::uint64_t num_blocks =
      0;  ///< Their blocks, each with its slot; for a load, also its GPU block.
  std::uint64_t staging_bytes = 0;  ///< Their ring entries.
};

/// One line: the lost device, the time, the reason, and the memory that stays in quarantine.
[[nodiscard]] std::string to_string(const Quarantine& quarantine);

}  // namespace kvferry::transfer
