// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace kvferry::gpu {

/// The compilers and architectures of the kernels in this build.
struct BuiltKernels {
  /// "13.0"; empty: built without nvcc.
  std::string cuda_toolkit;
  /// "sm_80", ascending.
  std::vector<std::string> cuda;
  /// "gfx90a". For other architectures hipRTC compiles the kernels, if ROCm has it.
  std::vector<std::string> hip;
};

/// Does not call any driver.
[[nodiscard]] BuiltKernels built_kernels();

}  // namespace kvferry::gpu
