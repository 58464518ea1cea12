// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "measure/host_copy_route.hpp"
#include "measure/link_peak.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace kvferry::bench {

/// The options of `link`, with their defaults.
struct LinkCommandOptions {
  LinkOptions link;
  std::string numa_nodes = "all";
  std::vector<std::uint32_t> host_threads = default_host_threads();
  /// Whether to measure the device's own memory too, even in the quick form.
  bool device_rate = false;

  [[nodiscard]] bool names_all_nodes() const { return numa_nodes == "all"; }
  /// The nodes whose memory is measured. All of them have memory. Throws ConfigError.
  [[nodiscard]] std::vector<std::uint32_t> nodes() const;
};

/// Adds the options to `app`; `options` outlives `app`.
void add_link_command_options(CLI::App& app, LinkCommandOptions& options);

/// Adds --host-threads, which `copy` has too; `num_threads` outlives `app`.
void add_host_threads_option(CLI::App& app, std::vector<std::uint32_t>& num_threads);

}  // namespace kvferry::bench
