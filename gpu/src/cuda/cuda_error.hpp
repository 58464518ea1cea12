// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/cuda_abi.hpp"
#include "driver/driver_result.hpp"

namespace kvferry::gpu {

/// The one place that converts codes of the CUDA driver to ours.
[[nodiscard]] DriverResult cuda_result(cuda_abi::Result code);
/// Whether a query of the legacy default stream failed because some stream is being captured.
[[nodiscard]] bool cuda_says_capturing(cuda_abi::Result code);

}  // namespace kvferry::gpu
