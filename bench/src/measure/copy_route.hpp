// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/gpu/copy_path.hpp"
#include "kvferry/gpu/device.hpp"

#include "measure/fragment_set.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>

namespace kvferry::bench {

/// Between which memory a route goes.
struct RouteEnds {
  gpu::CopyDirection direction = gpu::CopyDirection::kDeviceToHost;
  std::uintptr_t pool = 0;  ///< Device memory: the pool of `sets`.
  std::uintptr_t host = 0;  ///< The device's address of host memory: all sets, packed.
};

/// One way to copy fragment sets, ready to be gone again and again. What it needs was made by its
/// construction; submit() does nothing but submit.
class CopyRoute {
 public:
  virtual ~CopyRoute() = default;
  /// Submits set `set`. Throws DeviceError.
  virtual void submit(std::uint32_t set) = 0;
  /// Everything of a set runs behind what is submitted to first() before, and is over when what is
  /// submitted to last() behind it runs.
  [[nodiscard]] virtual gpu::Stream& first() = 0;
  [[nodiscard]] virtual gpu::Stream& last() = 0;
  /// Copies, or fragments of a kernel, that the caller names for one set.
  [[nodiscard]] virtual std::uint64_t descriptors_per_set() const = 0;
};

/// `path` between `ends`; `sets` outlives the route. `staged_piece_bytes`: what kStaged packs
/// before it is copied. Throws ResourceError or DeviceError.
[[nodiscard]] std::unique_ptr<CopyRoute> make_route(gpu::Device& device, gpu::CopyPath path,
                                                    const FragmentSets& sets, const RouteEnds& ends,
                                                    std::uint64_t staged_piece_bytes);

}  // namespace kvferry::bench
