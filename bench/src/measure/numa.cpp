// SPDX-License-Identifier: Apache-2.0
#include "measure/numa.hpp"

#include "kvferry/base/error.hpp"
#include "kvferry/cpu_tier/memory/machine_topology.hpp"

#include <fmt/format.h>

#include <charconv>
#include <optional>
#include <string>

namespace kvferry::bench {
namespace {

// MAX_NUMNODES of the kernels with most nodes: 2^CONFIG_NODES_SHIFT, where the shift is at most 10.
constexpr std::uint32_t kMostNodes = 1024;

std::uint32_t number_from(std::string_view text, std::string_view all) {
  std::uint32_t number = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), number);
  if (parsed.ec != std::errc() || parsed.ptr != text.data() + text.size() || number >= kMostNodes) {
    throw ConfigError(fmt::format("'{}' is not a list of NUMA nodes: write 0, 0,1 or 0-3", all));
  }
  return number;
}

const cpu_tier::MachineTopology& this_machine() {
  static const cpu_tier::MachineTopology kTopology;
  return kTopology;
}

ResourceError refused(const char* step, std::uint32_t node) {
  return ResourceError(fmt::format(
      "the kernel refuses {} NUMA node {}; a container may have to allow it (CAP_SYS_NICE)", step,
      node));
}

}  // namespace

std::vector<std::uint32_t> node_list_from(std::string_view text) {
  std::vector<std::uint32_t> nodes;
  for (std::string_view rest = text;;) {
    const std::size_t comma = rest.find(',');
    const std::string_view part = rest.substr(0, comma);
    const std::size_t dash = part.find('-');
    const std::uint32_t first = number_from(part.substr(0, dash), text);
    const std::uint32_t last =
        dash == std::string_view::npos ? first : number_from(part.substr(dash + 1), text);
    for (std::uint32_t node = first; node <= last; ++node) nodes.push_back(node);
    if (comma == std::string_view::npos) return nodes;
    rest = rest.substr(comma + 1);
  }
}

std::vector<std::uint32_t> memory_nodes() {
  std::vector<std::uint32_t> numbers;
  for (const cpu_tier::NumaNode& node : this_machine().nodes()) numbers.push_back(node.number);
  return numbers;
}

void prefer_node(std::span<std::byte> memory, std::uint32_t node) {
  if (this_machine().nodes().size() == 1) return;
  if (!this_machine().prefer(memory, node)) throw refused("to take memory of", node);
}

void check_node(std::span<std::byte> memory, std::uint32_t node) {
  if (this_machine().nodes().size() == 1) return;
  const std::optional<double> share = this_machine().share_on(memory, node);
  if (!share) throw refused("to tell what memory is on", node);
  if (*share == 1.0) return;
  throw ResourceError(
      fmt::format("memory that should be on NUMA node {} is elsewhere (only {:.0f} % is "
                  "there): is the node full?",
                  node, 100 * *share));
}

}  // namespace kvferry::bench
