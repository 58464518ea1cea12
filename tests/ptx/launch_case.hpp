// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "interpreter/fault.hpp"
#include "interpreter/global_memory.hpp"
#include "interpreter/kernel.hpp"
#include "interpreter/launch.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace kvferry::ptx {

/// A launch and the memory before it.
struct LaunchCase {
  std::string kernel;
  LaunchShape shape;
  std::vector<std::byte> parameter;
  GlobalMemory memory;
  /// For messages.
  std::string description;
  /// Where the table of fragments lies that PackArguments points to; 0 for another parameter.
  std::uint64_t table = 0;
  /// What the range of sums (Access::kAdd) shall hold afterwards, if there is one.
  std::vector<std::uint64_t> sums{};
};

/// What became of a launch.
struct Outcome {
  /// Empty if every byte is right.
  std::string failure;
  /// What stopped it. None if it ended: then the bytes are right or wrong.
  std::optional<Hazard> hazard;
  std::uint64_t num_instructions = 0;
};

/// More than any honest launch of these tests takes: a mutant may run in circles.
inline constexpr std::uint64_t kMaxInstructions = 20'000'000;

/// Runs the launch on an interpreter; returns the instructions. Throws Fault.
using Interpret =
    std::function<std::uint64_t(const LaunchCase& launch, GlobalMemory& memory, Random& random)>;

/// Runs the launch; then every byte must be what the host emulation (fake_kernels.hpp) makes of the
/// same memory, every byte of what it may write must be written, and the sums must be those of the
/// case. `seed` decides the order of
/// all that is concurrent.
[[nodiscard]] Outcome run_case(const Interpret& interpret, const LaunchCase& launch,
                               std::uint64_t seed);

/// The interpreter of PTX. The kernel outlives the result.
[[nodiscard]] Interpret interpreter_of(const Kernel& kernel);

}  // namespace kvferry::ptx
