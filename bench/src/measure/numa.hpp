// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

/// NUMA nodes of this machine, from cpu_tier::MachineTopology.
namespace kvferry::bench {

/// The numbers of a list in the kernel's form, such as "0-1,4". Throws ConfigError.
[[nodiscard]] std::vector<std::uint32_t> node_list_from(std::string_view text);

/// The nodes that this process can use, ascending.
[[nodiscard]] std::vector<std::uint32_t> memory_nodes();

/// Asks the kernel to take the pages of `memory` (page-aligned, untouched) from `node` when they
/// are first touched, if it has any left. Does nothing on a machine with one node. Throws
/// ResourceError if the kernel refuses (containers often forbid it).
void prefer_node(std::span<std::byte> memory, std::uint32_t node);

/// Checks a sample of pages of `memory`, which were touched. Throws ResourceError if one is not on
/// `node`, or if the kernel does not report it. Does nothing on a machine with one node.
void check_node(std::span<std::byte> memory, std::uint32_t node);

}  // namespace kvferry::bench
