// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/gpu/device.hpp"

namespace kvferry::gpu {

/// Copies `run` between device memory and host memory that is *not* registered, to measure what
/// pinning gains; nothing else should want it. The host side is the host's own address. A driver
/// takes the bytes through a buffer of its own, and may do so before the call returns. The memory
/// stays until the stream got there. `stream` is one of `device`. Throws DeviceError.
void copy_pageable(Device& device, Stream& stream, CopyDirection direction, const CopyRun& run);

}  // namespace kvferry::gpu
