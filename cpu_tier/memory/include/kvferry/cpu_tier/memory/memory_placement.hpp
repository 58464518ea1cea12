// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/cpu_tier/memory/machine_topology.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace kvferry::cpu_tier {

/// Where memory should lie. Empty: wherever the kernel puts it.
struct MemoryPlacement {
  std::shared_ptr<const MachineTopology> topology;
  /// Set only if there is a topology.
  std::optional<std::uint32_t> node;
  /// Why this node was chosen, or none; for logs.
  std::string reason = "no preference";
};

/// Chooses the node for the host memory of a device: `wanted`, if the user chose one; otherwise the
/// node next to the device at `pci_address`; otherwise, for a device that computes on processors,
/// the node to which the calling thread is bound. Throws ConfigError if the machine does not have
/// `wanted`.
[[nodiscard]] MemoryPlacement choose_memory_placement(
    std::shared_ptr<const MachineTopology> topology, std::optional<std::uint32_t> wanted,
    const std::optional<std::string>& pci_address);

}  // namespace kvferry::cpu_tier
