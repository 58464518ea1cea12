// SPDX-License-Identifier: Apache-2.0
#include "kvferry/gpu/hip_device.hpp"

#include "driver/driver_device.hpp"
#include "hip/hip_api.hpp"
#include "kernels/code_objects.hpp"

#include <exception>
#include <limits>

namespace kvferry::gpu {
namespace {

int count_devices(const HipLibrary& hip) {
  int num_devices = 0;
  const auto code = hip.get_device_count(&num_devices);
  if (code != hip_abi::kSuccess || num_devices <= 0) {
    throw DeviceError("the HIP runtime is there but shows no device: check HIP_VISIBLE_DEVICES");
  }
  return num_devices;
}

}  // namespace

BackendAvailability hip_availability(const DriverOptions& options) {
  try {
    return {static_cast<std::uint32_t>(count_devices(HipLibrary(options.library))), ""};
  } catch (const std::exception& error) {
    return {0, error.what()};
  }
}

// HIP makes a context when an object is made on a device, and not before.
std::vector<FoundDevice> find_hip_devices(const DriverOptions& options) {
  const int num_devices = count_devices(HipLibrary(options.library));
  std::vector<FoundDevice> found;
  for (int ordinal = 0; ordinal < num_devices; ++ordinal) {
    const HipApi api(HipLibrary(options.library), ordinal);
    const DriverTraits& traits = api.traits();
    const bool is_built = !hip_code_object(traits.architecture).empty();
    found.push_back({traits.device_name, traits.architecture, traits.driver, traits.pci_address,
                     is_built ? traits.architecture : "hipRTC"});
  }
  return found;
}

std::unique_ptr<Device> make_hip_device(std::uint32_t ordinal, const DriverOptions& options) {
  if (ordinal > static_cast<std::uint32_t>(std::numeric_limits<int>::max())) {
    throw ConfigError("there is no HIP device " + std::to_string(ordinal));
  }
  return std::make_unique<DriverDevice>(
      std::make_unique<HipApi>(HipLibrary(options.library), static_cast<int>(ordinal)), options);
}

}  // namespace kvferry::gpu
