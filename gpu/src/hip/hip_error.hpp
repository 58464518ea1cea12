// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "driver/driver_result.hpp"
#include "hip/hip_abi.hpp"

namespace kvferry::gpu {

/// The one place that converts codes of the HIP runtime to ours.
[[nodiscard]] DriverResult hip_result(hip_abi::Result code);
/// Whether a query of the legacy default stream failed because some stream is being captured.
[[nodiscard]] bool hip_says_capturing(hip_abi::Result code);

}  // namespace kvferry::gpu
