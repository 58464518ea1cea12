// SPDX-License-Identifier: Apache-2.0
#include "kvferry/gpu/cuda_device.hpp"

#include "cuda/cuda_api.hpp"
#include "cuda/cuda_traits.hpp"
#include "driver/driver_device.hpp"
#include "kernels/code_objects.hpp"

#include <exception>
#include <limits>

namespace kvferry::gpu {
namespace {

int count_devices(const CudaLibrary& cuda) {
  int num_devices = 0;
  const auto code = cuda.device_get_count(&num_devices);
  if (code != cuda_abi::kSuccess || num_devices <= 0) {
    throw DeviceError("the CUDA driver is there but shows no device: check CUDA_VISIBLE_DEVICES");
  }
  return num_devices;
}

}  // namespace

BackendAvailability cuda_availability(const DriverOptions& options) {
  try {
    return {static_cast<std::uint32_t>(count_devices(CudaLibrary(options.library))), ""};
  } catch (const std::exception& error) {
    return {0, error.what()};
  }
}

std::vector<FoundDevice> find_cuda_devices(const DriverOptions& options) {
  const CudaLibrary cuda(options.library);
  const int num_devices = count_devices(cuda);
  std::vector<FoundDevice> found;
  for (int ordinal = 0; ordinal < num_devices; ++ordinal) {
    cuda_abi::Device device = 0;
    cuda.require(cuda.device_get(&device, ordinal), "open CUDA device " + std::to_string(ordinal));
    const DriverTraits traits = cuda_traits(cuda, device);
    found.push_back({traits.device_name, traits.architecture, traits.driver, traits.pci_address,
                     cuda_code_for(traits.compute_capability)});
  }
  return found;
}

std::unique_ptr<Device> make_cuda_device(std::uint32_t ordinal, const DriverOptions& options) {
  if (ordinal > static_cast<std::uint32_t>(std::numeric_limits<int>::max())) {
    throw ConfigError("there is no CUDA device " + std::to_string(ordinal));
  }
  return std::make_unique<DriverDevice>(
      std::make_unique<CudaApi>(CudaLibrary(options.library), static_cast<int>(ordinal)), options);
}

}  // namespace kvferry::gpu
