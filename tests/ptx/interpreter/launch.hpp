// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "interpreter/copy_unit.hpp"
#include "interpreter/global_memory.hpp"
#include "interpreter/kernel.hpp"

#include <cstddef>
#include <cstdint>
#include <span>

namespace kvferry::ptx {

/// A grid of one dimension.
struct LaunchShape {
  std::uint32_t num_blocks = 1;
  std::uint32_t num_threads = 1;
  std::uint32_t shared_bytes = 0;
};

/// Runs every thread of a launch to its end, in an order of chance: several blocks at a time, the
/// lanes of a warp each at its own pace, bulk copies whenever. Throws Fault at the first hazard,
/// and says the instruction, the lane and the block. After `max_instructions` a launch counts as
/// one that does not end. Returns the instructions that were run.
std::uint64_t run_launch(const Kernel& kernel, const LaunchShape& shape,
                         std::span<const std::byte> parameter, GlobalMemory& memory, Random& random,
                         std::uint64_t max_instructions = 200'000'000);

}  // namespace kvferry::ptx
