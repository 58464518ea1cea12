// SPDX-License-Identifier: Apache-2.0
#include "gcn/launch.hpp"

#include "gcn/wave.hpp"
#include "interpreter/fault.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

namespace kvferry::gcn {
namespace {

// Far from what a launch maps.
constexpr std::uint64_t kParameterAddress = 0x6500'0000'0000U;
constexpr std::uint64_t kPacketAddress = 0x6600'0000'0000U;

/// HSA, "Kernel dispatch packet": the sizes of a block and of the grid in threads.
std::vector<std::uint8_t> packet_of(const ptx::LaunchShape& shape) {
  constexpr std::size_t kPacketBytes = 64;
  constexpr std::size_t kBlockSize = 4;
  constexpr std::size_t kGridSize = 12;
  std::vector<std::uint8_t> packet(kPacketBytes);
  const auto block = static_cast<std::uint16_t>(shape.num_threads);
  const std::uint32_t grid = shape.num_blocks * shape.num_threads;
  std::memcpy(packet.data() + kBlockSize, &block, sizeof(block));
  std::memcpy(packet.data() + kGridSize, &grid, sizeof(grid));
  return packet;
}

void set_address(Wave& wave, std::uint16_t reg, std::uint64_t address) {
  wave.set_scalar(reg, static_cast<std::uint32_t>(address));
  wave.set_scalar(static_cast<std::uint16_t>(reg + 1), static_cast<std::uint32_t>(address >> 32U));
}

}  // namespace

std::uint64_t run_launch(const Kernel& kernel, const ptx::LaunchShape& shape,
                         std::span<const std::byte> parameter, ptx::GlobalMemory& memory,
                         ptx::Random& random, std::uint64_t max_instructions) {
  if (parameter.size() != kernel.parameter_bytes) {
    throw ptx::Fault(ptx::Hazard::kLaunch, "the parameter has " + std::to_string(parameter.size()) +
                                               " bytes, in the assembly " +
                                               std::to_string(kernel.parameter_bytes));
  }
  std::vector<std::uint8_t> bytes(parameter.size());
  std::memcpy(bytes.data(), parameter.data(), parameter.size());
  memory.map(kParameterAddress, ptx::Access::kRead, std::move(bytes));
  memory.map(kPacketAddress, ptx::Access::kRead, packet_of(shape));

  const std::uint32_t waves_per_block = (shape.num_threads + Wave::kNumLanes - 1) / Wave::kNumLanes;
  std::vector<std::uint32_t> order(std::size_t{shape.num_blocks} * waves_per_block);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), random);
  std::uint64_t num_run = 0;
  for (const std::uint32_t number : order) {
    Wave wave(kernel, memory, random);
    const std::uint32_t first = number % waves_per_block * Wave::kNumLanes;
    const std::uint32_t lanes = std::min(Wave::kNumLanes, shape.num_threads - first);
    set_address(wave, kernel.dispatch_register, kPacketAddress);
    set_address(wave, kernel.parameter_register, kParameterAddress);
    wave.set_scalar(kernel.block_register, number / waves_per_block);
    wave.set_exec(lanes == Wave::kNumLanes ? ~0ULL : (1ULL << lanes) - 1);
    for (std::uint32_t lane = 0; lane < lanes; ++lane) wave.set_vector(0, lane, first + lane);
    num_run += wave.run(max_instructions - num_run);
  }
  return num_run;
}

}  // namespace kvferry::gcn
