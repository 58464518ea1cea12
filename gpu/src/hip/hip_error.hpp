// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "driver/driver_result.hpp"
#include "hip/hip_abi.hpp"

namespace kvferry::gpu {

/// The one place where codes of the HIP runtime become ours.
[[nodiscard]] DriverResult hip_result(hip_abi::Result code);
/// Whether asking about the legacy default stream failed because some stream is being captured.
[[nodiscard]] bool hip_says_capturing(hip_abi::Result code);

}  // namespace kvferry::gpu
