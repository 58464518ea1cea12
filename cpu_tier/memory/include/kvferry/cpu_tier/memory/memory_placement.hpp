// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/cpu_tier/memory/machine_topology.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace kvferry::cpu_tier {

/// Where memory is to lie. Empty: wherever the kernel puts it.
struct MemoryPlacement {
  std::shared_ptr<const MachineTopology> topology;
  /// Set only with a topology.
  std::optional<std::uint32_t> node;
  /// Why that node, or none: for logs.
  std::string reason = "no preference";
};

/// The node for the host memory of a device: `wanted`, if the user chose one; else the one that the
/// device at `pci_address` hangs on; else, for what computes on processors, the one that the
/// calling thread is bound to. Throws ConfigError if the machine does not have `wanted`.
[[nodiscard]] MemoryPlacement choose_memory_placement(
    std::shared_ptr<const MachineTopology> topology, std::optional<std::uint32_t> wanted,
    const std::optional<std::string>& pci_address);

}  // namespace kvferry::cpu_tier
