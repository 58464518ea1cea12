// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/gpu/device.hpp"

namespace kvferry::transfer {

/// Whether the device is lost and may still touch the memory of its work.
[[nodiscard]] inline bool in_doubt(const gpu::Device& device) {
  const auto loss = device.lost();
  return loss && loss->memory == gpu::LostMemory::kInDoubt;
}

}  // namespace kvferry::transfer
