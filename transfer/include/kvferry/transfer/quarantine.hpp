// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/gpu/device_loss.hpp"

#include <cstdint>
#include <string>

namespace kvferry::transfer {

/// What stays out of use for good because the device was lost with memory in doubt. A transfer that
/// the device may still be working on never ends, and its slots, blocks and ring entries are never
/// given back; the rest of the transfers end as failed.
struct Quarantine {
  gpu::DeviceLoss loss;
  std::uint64_t num_transfers = 0;  ///< That will never end.
  std::uint64_t num_blocks = 0;     ///< Theirs: each with its slot, and of a load its GPU block.
  std::uint64_t staging_bytes = 0;  ///< Device memory between the two.
};

/// One line: what was lost, since when, why, and what stays behind.
[[nodiscard]] std::string to_string(const Quarantine& quarantine);

}  // namespace kvferry::transfer
