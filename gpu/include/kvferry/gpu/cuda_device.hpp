// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/gpu/device.hpp"
#include "kvferry/gpu/driver_options.hpp"

#include <cstdint>
#include <memory>
#include <vector>

namespace kvferry::gpu {

/// Looks for the driver and counts its devices; makes no context. Never throws. Thread-safe.
[[nodiscard]] BackendAvailability cuda_availability(const DriverOptions& options = {});

/// The devices that this process sees, in the order of their ordinals; makes no context. At least
/// one. Throws DeviceError, as cuda_availability() says, or if one does not describe itself.
[[nodiscard]] std::vector<FoundDevice> find_cuda_devices(const DriverOptions& options = {});

/// Makes the CUDA device `ordinal` (as the process numbers its devices) on its primary context.
/// Opens `options.library`, or `libcuda.so.1`.
/// Throws ConfigError if there is no such device, or DeviceError if the library is missing, lacks a
/// function, is older than the code objects of this build, or refuses; one line that says what to
/// do.
[[nodiscard]] std::unique_ptr<Device> make_cuda_device(std::uint32_t ordinal,
                                                       const DriverOptions& options = {});

}  // namespace kvferry::gpu
