// SPDX-License-Identifier: Apache-2.0
#include "cuda/cuda_traits.hpp"

#include "driver/pci_address.hpp"

#include <array>

namespace kvferry::gpu {
namespace {

int attribute(const CudaLibrary& cuda, cuda_abi::Device device, int which) {
  int value = 0;
  cuda.require(cuda.device_get_attribute(&value, which, device),
               "ask for attribute " + std::to_string(which) + " of a CUDA device");
  return value;
}

}  // namespace

DriverTraits cuda_traits(const CudaLibrary& cuda, cuda_abi::Device device) {
  DriverTraits traits;
  traits.kind = BackendKind::kCuda;
  std::array<char, 256> name{};
  cuda.require(cuda.device_get_name(name.data(), static_cast<int>(name.size()) - 1, device),
               "ask for the name of a CUDA device");
  traits.device_name = name.data();
  if (cuda.device_get_pci_bus_id(name.data(), static_cast<int>(name.size()), device) ==
      cuda_abi::kSuccess) {
    traits.pci_address = pci_address_of(name.data());
  }
  traits.compute_capability =
      attribute(cuda, device, cuda_abi::kAttributeComputeCapabilityMajor) * 10 +
      attribute(cuda, device, cuda_abi::kAttributeComputeCapabilityMinor);
  traits.architecture = "sm_" + std::to_string(traits.compute_capability);
  traits.num_multiprocessors = attribute(cuda, device, cuda_abi::kAttributeMultiprocessorCount);
  traits.driver = "CUDA driver " + CudaLibrary::version_text(cuda.version());
  const bool has_batch = cuda.copy_batch_12080 != nullptr || cuda.copy_batch_13000 != nullptr;
  traits.max_batch_runs = has_batch ? kMaxBatchRuns : 0;
  return traits;
}

}  // namespace kvferry::gpu
