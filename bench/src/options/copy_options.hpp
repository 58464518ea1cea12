// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "measure/copy_row.hpp"
#include "options/common_options.hpp"
#include "options/model_options.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace kvferry::bench {

/// What the command line of `copy` says about its rows, and by default. Empty and 0: as the help
/// says.
struct CopyOptions {
  std::vector<std::string> paths = {"per_run", "batch", "kernel", "staged"};
  std::vector<std::string> fragments = {};
  std::vector<std::uint32_t> counts = {};
  ModelOptions model;
  std::uint32_t num_blocks = 0;
  std::vector<std::string> directions = {"h2d", "d2h", "both"};
  std::vector<std::string> placements = {"shuffled"};
  std::string staged_piece = "8MiB";
  std::string max_set = "64MiB";
  std::string round_size = {};
};

/// Adds them to `app`; `options` outlives it.
void add_copy_options(CLI::App& app, CopyOptions& options);

/// The rows; those of one shape, each of another path, follow one another. Throws ConfigError.
[[nodiscard]] std::vector<CopyRowOptions> copy_rows(const CopyOptions& options,
                                                    const CommonOptions& common);

}  // namespace kvferry::bench
