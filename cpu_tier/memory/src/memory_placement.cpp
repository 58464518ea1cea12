// SPDX-License-Identifier: Apache-2.0
#include "kvferry/cpu_tier/memory/memory_placement.hpp"

#include <utility>

namespace kvferry::cpu_tier {

MemoryPlacement choose_memory_placement(std::shared_ptr<const MachineTopology> topology,
                                        std::optional<std::uint32_t> wanted,
                                        const std::optional<std::string>& pci_address) {
  MemoryPlacement placement{std::move(topology), std::nullopt, "the machine has one node"};
  const MachineTopology& machine = *placement.topology;
  if (wanted) {
    machine.check_node(*wanted);
    placement.node = wanted;
    placement.reason = "numa_node";
  } else if (machine.nodes().size() > 1 && pci_address) {
    placement.node = machine.node_of_device(*pci_address);
    placement.reason = placement.node ? "the device at " + *pci_address + " is attached to it"
                                      : "the machine does not report the node of the device at " +
                                            *pci_address + "; set numa_node";
  } else if (machine.nodes().size() > 1) {
    placement.node = machine.node_of_this_thread();
    placement.reason =
        placement.node ? "the worker is bound to it"
                       : "the worker is not bound to a single node; set numa_node to choose one";
  }
  return placement;
}

}  // namespace kvferry::cpu_tier
