// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "gcn/instruction.hpp"
#include "interpreter/launch.hpp"

#include <cstddef>
#include <cstdint>
#include <span>

namespace kvferry::gcn {

/// Runs every wave of a launch to its end, in an order of chance, with the parameter and a dispatch
/// packet in memory of their own. Throws ptx::Fault at the first hazard, and says the instruction.
/// Returns the instructions that were run, of waves.
std::uint64_t run_launch(const Kernel& kernel, const ptx::LaunchShape& shape,
                         std::span<const std::byte> parameter, ptx::GlobalMemory& memory,
                         ptx::Random& random, std::uint64_t max_instructions);

}  // namespace kvferry::gcn
