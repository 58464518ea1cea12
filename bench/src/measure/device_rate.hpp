// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "subcommand.hpp"

namespace kvferry::bench {

/// GB/s that the device's own memory gives, reads and writes together: those of a triad over three
/// buffers of 128 MiB (gpu::CoRunKind::kStream), by the device's clock, median of ten iterations of
/// 4 ms. Throws ResourceError or DeviceError.
[[nodiscard]] double measure_device_rate(Bench& bench);

}  // namespace kvferry::bench
