// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/cuda_library.hpp"
#include "driver/driver_api.hpp"

namespace kvferry::gpu {

/// Queries the driver about a device, without a context. Throws DeviceError.
[[nodiscard]] DriverTraits cuda_traits(const CudaLibrary& cuda, cuda_abi::Device device);

}  // namespace kvferry::gpu
