// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "subcommand.hpp"

namespace kvferry::bench {

/// Measures the rate of the device's own memory in GB/s, reads and writes together: a triad over
/// three buffers of 128 MiB (gpu::CoRunKind::kStream), by the device's clock, as the median of ten
/// iterations of 4 ms. Throws ResourceError or DeviceError.
[[nodiscard]] double measure_device_rate(Bench& bench);

}  // namespace kvferry::bench
