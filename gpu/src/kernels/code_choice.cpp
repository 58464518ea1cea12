// SPDX-License-Identifier: Apache-2.0
#include "kernels/code_objects.hpp"

namespace kvferry::gpu {

std::string cuda_code_for(int compute_capability, std::span<const int> architectures) {
  std::string best;
  for (const int one : architectures) {
    const bool same_major = one / 10 == compute_capability / 10;
    if (same_major && one <= compute_capability) best = "sm_" + std::to_string(one);
  }
  if (!best.empty() || architectures.empty() || architectures.back() > compute_capability) {
    return best;
  }
  return "PTX of sm_" + std::to_string(architectures.back());
}

}  // namespace kvferry::gpu
