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
  kStreaming  ///< Stores that bypass the caches, and are ordered before the end.
};
/// The name of a kind: "memcpy", "streaming".
[[nodiscard]] const char* to_string(HostCopyKind kind);

/// Copies by the processor, without kvferry's device interface. The host back end is compared with
/// them.
struct HostCopy {
  HostCopyKind kind = HostCopyKind::kMemcpy;
  std::uint32_t num_threads = 1;
};

/// Both kinds, each with each of these numbers of threads.
[[nodiscard]] std::vector<HostCopy> host_copies(const std::vector<std::uint32_t>& num_threads);
/// The default numbers of threads: 1, and most_copy_threads().
[[nodiscard]] std::vector<std::uint32_t> default_host_threads();

/// Copies the same runs as the copy paths, on threads that share the bytes evenly. The call
/// submit(0) copies all sets, so that threads start once in a round; other calls do nothing.
/// `device` is the host back end's. Throws DeviceError.
[[nodiscard]] std::unique_ptr<CopyRoute> make_host_copy_route(gpu::Device& device,
                                                              const HostCopy& copy,
                                                              const FragmentSets& sets,
                                                              const RouteEnds& ends);

}  // namespace kvferry::bench
