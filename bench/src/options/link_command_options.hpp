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

/// What the command line of `link` says, and by default.
struct LinkCommandOptions {
  LinkOptions link;
  std::string numa_nodes = "all";
  std::vector<std::uint32_t> host_threads = default_host_threads();
  /// The device's own memory too, in the quick form as well.
  bool device_rate = false;

  [[nodiscard]] bool names_all_nodes() const { return numa_nodes == "all"; }
  /// The nodes whose memory is measured, all of which have some. Throws ConfigError.
  [[nodiscard]] std::vector<std::uint32_t> nodes() const;
};

/// Adds them to `app`; `options` outlives it.
void add_link_command_options(CLI::App& app, LinkCommandOptions& options);

/// Adds --host-threads, which `copy` takes too; `num_threads` outlives `app`.
void add_host_threads_option(CLI::App& app, std::vector<std::uint32_t>& num_threads);

}  // namespace kvferry::bench
