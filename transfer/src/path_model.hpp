// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "copy_shape.hpp"

namespace kvferry::transfer {

/// Bytes per second of the link that devices of a family usually have, one way: PCIe 4 x16 below
/// sm_90, PCIe 5 x16 else. The host back end has none.
[[nodiscard]] double link_rate(gpu::DeviceFamily family);

/// Bytes per second to expect of `path` for `shape` before anything was measured. From other
/// people's figures (sources in path_model.cpp): only their order matters, because the first
/// measured times scale them all.
[[nodiscard]] double default_rate(gpu::DeviceFamily family, gpu::CopyPath path,
                                  const CopyShape& shape);

}  // namespace kvferry::transfer
