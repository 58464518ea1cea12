// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/gpu/device.hpp"

namespace kvferry::gpu {

/// Copies `run` between device memory and host memory that is *not* registered. Use it only to
/// measure the gain of pinning. The host side is an ordinary host address. The driver copies
/// through its own buffer, possibly before the call returns. The memory must stay valid until the
/// stream has reached the copy. `stream` belongs to `device`. Throws DeviceError.
void copy_pageable(Device& device, Stream& stream, CopyDirection direction, const CopyRun& run);

}  // namespace kvferry::gpu
