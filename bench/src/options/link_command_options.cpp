// SPDX-License-Identifier: Apache-2.0
#include "options/link_command_options.hpp"

#include "kvferry/base/error.hpp"

#include "measure/numa.hpp"

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace kvferry::bench {

std::vector<std::uint32_t> LinkCommandOptions::nodes() const {
  const std::vector<std::uint32_t> present = memory_nodes();
  if (names_all_nodes()) return present;
  std::vector<std::uint32_t> wanted = node_list_from(numa_nodes);
  for (const std::uint32_t node : wanted) {
    if (std::find(present.begin(), present.end(), node) != present.end()) continue;
    throw ConfigError(fmt::format("NUMA node {} has no memory here; these nodes have some: {}",
                                  node, fmt::join(present, ",")));
  }
  return wanted;
}

void add_link_command_options(CLI::App& app, LinkCommandOptions& options) {
  add_link_options(app, options.link);
  app.add_option("--numa-node", options.numa_nodes,
                 "nodes whose host memory is measured, with rows for each node: all, 0 or 0,1")
      ->type_name("NODES")
      ->capture_default_str();
  app.add_flag("--device-rate", options.device_rate,
               "measure the device's own memory, in GB/s, in the quick form too");
  add_host_threads_option(app, options.host_threads);
}

void add_host_threads_option(CLI::App& app, std::vector<std::uint32_t>& num_threads) {
  app.add_option("--host-threads", num_threads,
                 "threads of the plain copies that the host back end is compared with")
      ->delimiter(',')
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
}

}  // namespace kvferry::bench
