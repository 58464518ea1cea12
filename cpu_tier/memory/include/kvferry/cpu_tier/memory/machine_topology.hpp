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
  std::uint32_t number = 0;  ///< As the kernel numbers it.
  std::uint64_t memory_bytes = 0;
  std::uint32_t num_cpus = 0;  ///< Processors that this process can use.
};

/// The NUMA nodes of a machine and the devices near them, from hwloc. Nodes that are a GPU's own
/// memory (GH200) are left out. Immutable and thread-safe, except for the thread or memory that a
/// call changes.
class MachineTopology {
 public:
  /// Describes the part of this machine that this process can use (cpusets of cgroups). Throws
  /// ResourceError.
  MachineTopology();
  /// Describes the machine in an hwloc XML file (lstopo machine.xml). Such a topology cannot bind
  /// threads or memory. Throws ConfigError with the file's name.
  explicit MachineTopology(const std::filesystem::path& xml);
  ~MachineTopology();
  MachineTopology(const MachineTopology&) = delete;
  MachineTopology& operator=(const MachineTopology&) = delete;

  /// Ascending by number; at least one.
  [[nodiscard]] const std::vector<NumaNode>& nodes() const { return nodes_; }
  /// The node next to the device at `pci_address` ("0000:41:00.0"). Nothing if the machine has only
  /// one node, does not have the device, or does not report it (many virtual machines).
  [[nodiscard]] std::optional<std::uint32_t> node_of_device(const std::string& pci_address) const;
  /// The node to whose processors the calling thread is bound, if there are several nodes and it is
  /// bound to one.
  [[nodiscard]] std::optional<std::uint32_t> node_of_this_thread() const;
  /// Throws ConfigError that lists the nodes, unless `node` is one of them.
  void check_node(std::uint32_t node) const;

  /// Binds the calling thread to the processors of `node`; a node without processors binds nothing.
  /// Returns whether the kernel accepted it.
  [[nodiscard]] bool bind_this_thread(std::uint32_t node) const;
  /// Prefers `node` for the pages of `memory` (whole pages, untouched). When the node is full,
  /// pages come from other nodes. It never uses the strict policy, which triggers the OOM killer
  /// when the node is full. Returns whether the kernel accepted it (containers can lack
  /// CAP_SYS_NICE).
  [[nodiscard]] bool prefer(std::span<std::byte> memory, std::uint32_t node) const;
  /// The share in [0, 1] of the resident pages of `memory` that lie on `node`, estimated from a
  /// sample. Nothing if no page is resident, or if the kernel does not report it.
  [[nodiscard]] std::optional<double> share_on(std::span<std::byte> memory,
                                               std::uint32_t node) const;

 private:
  struct Hwloc;
  explicit MachineTopology(std::unique_ptr<Hwloc> hwloc);

  std::unique_ptr<Hwloc> hwloc_;
  std::vector<NumaNode> nodes_;
};

}  // namespace kvferry::cpu_tier
