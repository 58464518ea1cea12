// SPDX-License-Identifier: Apache-2.0
#include "kvferry/gpu/built_kernels.hpp"

#include "cuda/cuda_library.hpp"
#include "kernels/code_objects.hpp"

namespace kvferry::gpu {

BuiltKernels built_kernels() {
  BuiltKernels built;
  if (const int version = cuda_toolkit_version(); version != 0) {
    built.cuda_toolkit = CudaLibrary::version_text(version);
  }
  for (const int one : cuda_architectures()) built.cuda.push_back("sm_" + std::to_string(one));
  for (const HipCodeObject& object : hip_code_objects()) built.hip.emplace_back(object.arch);
  return built;
}

}  // namespace kvferry::gpu
