// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdlib>
#include <string>

namespace kvferry::fakes {

/// File of a stand-in driver: what the environment names, for programs that were carried to another
/// machine (tools/gpu_check_build.py), else that of this build.
[[nodiscard]] inline std::string fake_library(const char* variable, const char* built) {
  const char* const named = std::getenv(variable);
  return named != nullptr && *named != '\0' ? named : built;
}
[[nodiscard]] inline std::string fake_cuda_library() {
  return fake_library("KVFERRY_FAKE_CUDA", KVFERRY_FAKE_CUDA);
}
[[nodiscard]] inline std::string fake_hip_library() {
  return fake_library("KVFERRY_FAKE_HIP", KVFERRY_FAKE_HIP);
}

}  // namespace kvferry::fakes
