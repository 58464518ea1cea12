// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/gpu/copy_path.hpp"
#include "kvferry/gpu/device.hpp"

#include "measure/fragment_set.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>

namespace kvferry::bench {

/// The memory at both ends of a route.
struct RouteEnds {
  gpu::CopyDirection direction = gpu::CopyDirection::kDeviceToHost;
  std::uintptr_t pool = 0;  ///< Device memory: the pool of `sets`.
  std::uintptr_t host = 0;  ///< The device's address of host memory: all sets, packed.
};

/// One way to copy fragment sets, again and again. Everything that it needs is made by its
/// construction; submit() only submits.
class CopyRoute {
 public:
  virtual ~CopyRoute() = default;
  /// Submits set `set`. Throws DeviceError.
  virtual void submit(std::uint32_t set) = 0;
  /// The work of a set runs after everything that was submitted to first() before, and before
  /// everything that is submitted to last() later.
  [[nodiscard]] virtual gpu::Stream& first() = 0;
  [[nodiscard]] virtual gpu::Stream& last() = 0;
  /// Number of copies, or of a kernel's fragments, that the caller gives for one set.
  [[nodiscard]] virtual std::uint64_t descriptors_per_set() const = 0;
};

/// Makes the route of `path` between `ends`; `sets` outlives the route. `staged_piece_bytes`: bytes
/// that kStaged packs before each copy. Throws ResourceError or DeviceError.
[[nodiscard]] std::unique_ptr<CopyRoute> make_route(gpu::Device& device, gpu::CopyPath path,
                                                    const FragmentSets& sets, const RouteEnds& ends,
                                                    std::uint64_t staged_piece_bytes);

}  // namespace kvferry::bench
