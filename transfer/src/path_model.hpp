// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "copy_shape.hpp"

namespace kvferry::transfer {

/// The usual rate of the link of devices of a family, in bytes per second and one way: PCIe 4 x16
/// below sm_90, otherwise PCIe 5 x16. The host back end has no link.
[[nodiscard]] double link_rate(gpu::DeviceFamily family);

/// The expected bytes per second of `path` for `shape` before anything was measured. It comes from
/// other people's figures (sources in path_model.cpp). Only the order matters, because the first
/// measured times scale all of them.
[[nodiscard]] double default_rate(gpu::DeviceFamily family, gpu::CopyPath path,
                                  const CopyShape& shape);

}  // namespace kvferry::transfer
