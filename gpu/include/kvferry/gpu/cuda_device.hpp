// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/gpu/device.hpp"
#include "kvferry/gpu/driver_options.hpp"

#include <cstdint>
#include <memory>
#include <vector>

namespace kvferry::gpu {

/// Looks for the driver and counts its devices. Makes no context. Never throws. Thread-safe.
[[nodiscard]] BackendAvailability cuda_availability(const DriverOptions& options = {});

/// The devices that this process sees, in the order of their ordinals; at least one. Makes no
/// context. Throws DeviceError if the back end is not available (with the text of
/// cuda_availability()), or if a device cannot be queried.
[[nodiscard]] std::vector<FoundDevice> find_cuda_devices(const DriverOptions& options = {});

/// Makes the CUDA device `ordinal` (as the process numbers its devices) on its primary context.
/// Opens `options.library`, or `libcuda.so.1`. Throws ConfigError if there is no such device.
/// Throws DeviceError if the library is missing, lacks a function, is older than this build's code
/// objects need, or returns an error. The message is one line that says what to do.
[[nodiscard]] std::unique_ptr<Device> make_cuda_device(std::uint32_t ordinal,
                                                       const DriverOptions& options = {});

}  // namespace kvferry::gpu
