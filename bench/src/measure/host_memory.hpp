// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/cpu_tier/memory/host_mapping.hpp"
#include "kvferry/gpu/device.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

namespace kvferry::bench {

enum class HostMemoryKind : std::uint8_t { kPinned, kPageable };
[[nodiscard]] const char* to_string(HostMemoryKind kind);

/// Populated host memory, page-aligned; pinned memory is registered in one piece. The owner
/// quiesces copies before it destroys the object.
class HostMemory {
 public:
  /// Allocates it on `numa_node`, or where the kernel chooses, after a check of the machine's
  /// memory budget. Throws ResourceError, also if it does not get memory of the node, or
  /// DeviceError.
  HostMemory(gpu::Device& device, std::uint64_t bytes, HostMemoryKind kind,
             std::optional<std::uint32_t> numa_node = std::nullopt);

  [[nodiscard]] std::span<std::byte> bytes() const;
  /// The address by which copies and kernels of the device access it.
  [[nodiscard]] std::uintptr_t device_address() const;

 private:
  std::uint64_t bytes_;
  cpu_tier::HostMapping mapping_;
  /// Null: pageable.
  std::unique_ptr<gpu::HostRegistration> registration_;
};

}  // namespace kvferry::bench
