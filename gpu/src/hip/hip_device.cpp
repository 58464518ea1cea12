// SPDX-License-Identifier: Apache-2.0
#include "kvferry/gpu/hip_device.hpp"

#include "driver/driver_device.hpp"
#include "hip/hip_api.hpp"

#include <exception>
#include <limits>

namespace kvferry::gpu {

BackendAvailability hip_availability(const DriverOptions& options) {
  try {
    const HipLibrary hip(options.library);
    int num_devices = 0;
    const auto code = hip.get_device_count(&num_devices);
    if (code != hip_abi::kSuccess || num_devices <= 0) {
      return {0, "the HIP runtime is there but shows no device: check HIP_VISIBLE_DEVICES"};
    }
    return {static_cast<std::uint32_t>(num_devices), ""};
  } catch (const std::exception& error) {
    return {0, error.what()};
  }
}

std::unique_ptr<Device> make_hip_device(std::uint32_t ordinal, const DriverOptions& options) {
  if (ordinal > static_cast<std::uint32_t>(std::numeric_limits<int>::max())) {
    throw ConfigError("there is no HIP device " + std::to_string(ordinal));
  }
  return std::make_unique<DriverDevice>(
      std::make_unique<HipApi>(HipLibrary(options.library), static_cast<int>(ordinal)), options);
}

}  // namespace kvferry::gpu
