// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace kvferry::gpu {

/// What the kernels in this build were compiled with and for.
struct BuiltKernels {
  /// "13.0"; empty: built without nvcc.
  std::string cuda_toolkit;
  /// "sm_80", ascending.
  std::vector<std::string> cuda;
  /// "gfx90a". hipRTC compiles the kernels for others, where ROCm has it.
  std::vector<std::string> hip;
};

/// Asks no driver.
[[nodiscard]] BuiltKernels built_kernels();

}  // namespace kvferry::gpu
