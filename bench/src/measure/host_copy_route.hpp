// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "measure/copy_route.hpp"

#include <cstdint>
#include <memory>
#include <vector>

namespace kvferry::bench {

/// How a processor copies.
enum class HostCopyKind : std::uint8_t {
  kMemcpy,    ///< std::memcpy.
  kStreaming  ///< Stores that pass the caches by, ordered before the end.
};
/// "memcpy", "streaming".
[[nodiscard]] const char* to_string(HostCopyKind kind);

/// Copies by the processor, that nothing of kvferry's device interface is between: what the host
/// back end is held against.
struct HostCopy {
  HostCopyKind kind = HostCopyKind::kMemcpy;
  std::uint32_t num_threads = 1;
};

/// Both kinds, each on each of these numbers of threads.
[[nodiscard]] std::vector<HostCopy> host_copies(const std::vector<std::uint32_t>& num_threads);
/// 1, and most_copy_threads().
[[nodiscard]] std::vector<std::uint32_t> default_host_threads();

/// The same runs as the copy paths have, on threads that share their bytes evenly. All sets are
/// copied by one call, submit(0), so that threads start once a round; the others do nothing.
/// `device` is the host back end's. Throws DeviceError.
[[nodiscard]] std::unique_ptr<CopyRoute> make_host_copy_route(gpu::Device& device,
                                                              const HostCopy& copy,
                                                              const FragmentSets& sets,
                                                              const RouteEnds& ends);

}  // namespace kvferry::bench
