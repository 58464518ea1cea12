// SPDX-License-Identifier: Apache-2.0
#include "kvferry/gpu/cuda_device.hpp"

#include "cuda/cuda_api.hpp"
#include "driver/driver_device.hpp"

#include <exception>
#include <limits>

namespace kvferry::gpu {

BackendAvailability cuda_availability(const DriverOptions& options) {
  try {
    const CudaLibrary cuda(options.library);
    int num_devices = 0;
    const auto code = cuda.device_get_count(&num_devices);
    if (code != cuda_abi::kSuccess || num_devices <= 0) {
      return {0, "the CUDA driver is there but shows no device: check CUDA_VISIBLE_DEVICES"};
    }
    return {static_cast<std::uint32_t>(num_devices), ""};
  } catch (const std::exception& error) {
    return {0, error.what()};
  }
}

std::unique_ptr<Device> make_cuda_device(std::uint32_t ordinal, const DriverOptions& options) {
  if (ordinal > static_cast<std::uint32_t>(std::numeric_limits<int>::max())) {
    throw ConfigError("there is no CUDA device " + std::to_string(ordinal));
  }
  return std::make_unique<DriverDevice>(
      std::make_unique<CudaApi>(CudaLibrary(options.library), static_cast<int>(ordinal)), options);
}

}  // namespace kvferry::gpu
