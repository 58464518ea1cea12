// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

/// NUMA nodes of this machine, as cpu_tier::MachineTopology knows them.
namespace kvferry::bench {

/// "0-1,4": the numbers of a list as the kernel writes it. Throws ConfigError.
[[nodiscard]] std::vector<std::uint32_t> node_list_from(std::string_view text);

/// The nodes that this process may use, ascending.
[[nodiscard]] std::vector<std::uint32_t> memory_nodes();

/// Has the pages of `memory` (page-aligned, untouched) come from `node` when they are first
/// touched, if it has any left. On a machine with one node there is nothing to do. Throws
/// ResourceError if the kernel refuses (containers often forbid it).
void prefer_node(std::span<std::byte> memory, std::uint32_t node);

/// Looks at pages of `memory`, touched and spread over it, and throws ResourceError if one is
/// elsewhere than on `node`, or if the kernel does not tell. On a machine with one node there is
/// nothing to look at.
void check_node(std::span<std::byte> memory, std::uint32_t node);

}  // namespace kvferry::bench
