// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "launch_case.hpp"

#include <cstdint>
#include <functional>
#include <ostream>
#include <string>
#include <vector>

namespace kvferry::ptx {

/// A kernel of a module of the build, and the launches that it is run on.
struct TestedKernel {
  std::string module;
  std::string name;
  std::function<LaunchCase(std::uint64_t seed)> make_case;
  /// None if the kernel reads no table of fragments.
  std::function<LaunchCase()> make_far_case;
  /// Launches of a usual run.
  std::uint64_t num_seeds;

  /// "compute_90_kvferry_gather".
  [[nodiscard]] std::string test_name() const { return module + "_" + name; }
  friend void PrintTo(const TestedKernel& one, std::ostream* to) { *to << one.test_name(); }
};

/// All of them; empty if built without nvcc. Bulk kernels are in the modules of compute capability
/// 9.0 and more.
[[nodiscard]] std::vector<TestedKernel> tested_kernels();

/// The same of AMD's assembly; empty if built without hipcc.
[[nodiscard]] std::vector<TestedKernel> tested_gcn_kernels();

}  // namespace kvferry::ptx
