// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace kvferry::cpu_tier {

/// Memory that some processors reach faster than others.
struct NumaNode {
  std::uint32_t number = 0;  ///< The kernel's.
  std::uint64_t memory_bytes = 0;
  std::uint32_t num_cpus = 0;  ///< Of those that this process may use.
};

/// The NUMA nodes of a machine and what is near to which, by hwloc. Nodes of a GPU's own memory
/// (GH200) are left out. Immutable and thread-safe, but for which thread or memory a call is about.
class MachineTopology {
 public:
  /// Of this machine, as far as this process may use it (cpusets of cgroups). Throws ResourceError.
  MachineTopology();
  /// Of the machine that an XML file of hwloc's describes (lstopo machine.xml). Nothing can be
  /// bound by it. Throws ConfigError naming the file.
  explicit MachineTopology(const std::filesystem::path& xml);
  ~MachineTopology();
  MachineTopology(const MachineTopology&) = delete;
  MachineTopology& operator=(const MachineTopology&) = delete;

  /// Ascending by number; one at least.
  [[nodiscard]] const std::vector<NumaNode>& nodes() const { return nodes_; }
  /// The node that the device at `pci_address` ("0000:41:00.0") hangs on. Nothing if the machine
  /// has one node, does not have the device, or does not say (many virtual machines).
  [[nodiscard]] std::optional<std::uint32_t> node_of_device(const std::string& pci_address) const;
  /// The node whose processors the calling thread is bound to, if there is one among several.
  [[nodiscard]] std::optional<std::uint32_t> node_of_this_thread() const;
  /// Throws ConfigError that lists the nodes, unless `node` is one of them.
  void check_node(std::uint32_t node) const;

  /// Binds the calling thread to the processors of `node`; a node without any binds nothing.
  /// Returns whether the kernel did.
  [[nodiscard]] bool bind_this_thread(std::uint32_t node) const;
  /// Has pages of `memory` (whole pages, untouched) come from `node` as long as it has any, and
  /// from elsewhere then: never the strict policy, which wakes the OOM killer when the node is
  /// full. Returns whether the kernel took it (containers may not: CAP_SYS_NICE).
  [[nodiscard]] bool prefer(std::span<std::byte> memory, std::uint32_t node) const;
  /// The share in [0, 1] of what is resident of `memory` that lies on `node`, by a sample of its
  /// pages; nothing if none is, or if the kernel does not tell.
  [[nodiscard]] std::optional<double> share_on(std::span<std::byte> memory,
                                               std::uint32_t node) const;

 private:
  struct Hwloc;
  explicit MachineTopology(std::unique_ptr<Hwloc> hwloc);

  std::unique_ptr<Hwloc> hwloc_;
  std::vector<NumaNode> nodes_;
};

}  // namespace kvferry::cpu_tier
