// SPDX-License-Identifier: Apache-2.0
#include "launch_case.hpp"

#include "fake_kernels.hpp"
#include "kernels/pack_arguments.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdio>
#include <cstring>

namespace kvferry::ptx {
namespace {

GlobalMemory emulated(const LaunchCase& launch) {
  GlobalMemory memory = launch.memory;
  std::vector<std::byte> parameter = launch.parameter;
  if (launch.table != 0) {
    // The emulation reads the table where it lies in this process.
    const std::uint8_t* const table = memory.host_address(launch.table, 1);
    std::memcpy(parameter.data() + offsetof(gpu::PackArguments, fragments), &table, sizeof(table));
  }
  fakes::run_kernel(launch.kernel, launch.shape.num_blocks, launch.shape.num_threads, parameter,
                    [&memory](std::uint64_t address, std::size_t bytes) -> void* {
                      return memory.host_address(address, bytes);
                    });
  for (const GlobalMemory::Range& range : memory.ranges()) {
    if (range.access != Access::kAdd) continue;
    std::memcpy(memory.host_address(range.address, range.bytes.size()), launch.sums.data(),
                range.bytes.size());
  }
  return memory;
}

std::string hexadecimal(std::uint64_t value) {
  std::array<char, 24> text;
  std::snprintf(text.data(), text.size(), "0x%llx", static_cast<unsigned long long>(value));
  return text.data();
}

/// What is wrong with a range; empty if nothing is.
std::string compared(const GlobalMemory::Range& range, const GlobalMemory::Range& expected) {
  const auto missing = std::find(range.written.begin(), range.written.end(), false);
  if (missing != range.written.end()) {
    const auto at = static_cast<std::uint64_t>(missing - range.written.begin());
    return "the byte at " + hexadecimal(range.address + at) + " was not written";
  }
  const auto wrong =
      std::mismatch(range.bytes.begin(), range.bytes.end(), expected.bytes.begin()).first;
  if (wrong == range.bytes.end()) return {};
  const auto at = static_cast<std::uint64_t>(wrong - range.bytes.begin());
  return "the byte at " + hexadecimal(range.address + at) + " is " + std::to_string(*wrong) +
         ", not " + std::to_string(expected.bytes[at]);
}

}  // namespace

Outcome run_case(const Interpret& interpret, const LaunchCase& launch, std::uint64_t seed) {
  Outcome outcome;
  GlobalMemory memory = launch.memory;
  Random random(seed);
  try {
    outcome.num_instructions = interpret(launch, memory, random);
  } catch (const Fault& fault) {
    outcome.hazard = fault.hazard();
    outcome.failure = std::string(fault.what()) + "\n  " + launch.description;
    return outcome;
  }
  // The interpreter may have mapped ranges of its own, parameters for example.
  auto range = memory.ranges().begin();
  const GlobalMemory expected = emulated(launch);
  for (const GlobalMemory::Range& one : expected.ranges()) {
    while (range->address != one.address) ++range;
    outcome.failure = compared(*range, one);
    if (outcome.failure.empty()) continue;
    outcome.failure += "\n  " + launch.description;
    break;
  }
  return outcome;
}

Interpret interpreter_of(const Kernel& kernel) {
  return [&kernel](const LaunchCase& launch, GlobalMemory& memory, Random& random) {
    return run_launch(kernel, launch.shape, launch.parameter, memory, random, kMaxInstructions);
  };
}

}  // namespace kvferry::ptx
