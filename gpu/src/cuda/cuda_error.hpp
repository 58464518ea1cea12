// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/cuda_abi.hpp"
#include "driver/driver_result.hpp"

namespace kvferry::gpu {

/// The one place where codes of the CUDA driver become ours.
[[nodiscard]] DriverResult cuda_result(cuda_abi::Result code);
/// Whether asking about the legacy default stream failed because some stream is being captured.
[[nodiscard]] bool cuda_says_capturing(cuda_abi::Result code);

}  // namespace kvferry::gpu
