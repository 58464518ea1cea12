// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "measure/copy_route.hpp"

#include <memory>

namespace kvferry::bench {

/// One call per run between the pool and host memory that is not registered; `ends.host` is the
/// host's own address. Throws DeviceError.
[[nodiscard]] std::unique_ptr<CopyRoute> make_pageable_route(gpu::Device& device,
                                                             const FragmentSets& sets,
                                                             const RouteEnds& ends);

}  // namespace kvferry::bench
