// SPDX-License-Identifier: Apache-2.0
#include "interpreter/launch.hpp"

#include "interpreter/block.hpp"
#include "interpreter/fault.hpp"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace kvferry::ptx {
namespace {

// Blocks that run at a time; the others begin as these end.
constexpr std::size_t kMaxResidentBlocks = 6;

void check_launch(const Kernel& kernel, const LaunchShape& shape,
                  std::span<const std::byte> parameter) {
  if (parameter.size() != kernel.parameter_bytes) {
    throw Fault(Hazard::kLaunch, "the parameter has " + std::to_string(parameter.size()) +
                                     " bytes, in PTX " + std::to_string(kernel.parameter_bytes));
  }
  if (kernel.max_threads != 0 && shape.num_threads > kernel.max_threads) {
    throw Fault(Hazard::kLaunch, std::to_string(shape.num_threads) +
                                     " threads; the kernel was compiled for at most " +
                                     std::to_string(kernel.max_threads));
  }
}

}  // namespace

std::uint64_t run_launch(const Kernel& kernel, const LaunchShape& shape,
                         std::span<const std::byte> parameter, GlobalMemory& memory, Random& random,
                         std::uint64_t max_instructions) {
  check_launch(kernel, shape, parameter);
  std::uint64_t num_run = 0;
  std::vector<std::unique_ptr<Block>> resident;
  std::uint32_t num_begun = 0;
  while (true) {
    while (resident.size() < kMaxResidentBlocks && num_begun < shape.num_blocks) {
      resident.push_back(std::make_unique<Block>(kernel, shape, num_begun++, parameter, memory));
    }
    if (resident.empty()) return num_run;
    std::unique_ptr<Block>& block = resident[random() % resident.size()];
    num_run += block->advance(random);
    if (num_run > max_instructions) {
      throw Fault(Hazard::kStuck,
                  "no end after " + std::to_string(max_instructions) + " instructions");
    }
    if (!block->is_done()) continue;
    std::swap(block, resident.back());
    resident.pop_back();
  }
}

}  // namespace kvferry::ptx
