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

/// The options of `copy` for its rows, with their defaults. The help says what empty and 0 mean.
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

/// Adds the options to `app`; `options` outlives `app`.
void add_copy_options(CLI::App& app, CopyOptions& options);

/// The rows. Rows of the same shape with different paths are next to each other. Throws
/// ConfigError.
[[nodiscard]] std::vector<CopyRowOptions> copy_rows(const CopyOptions& options,
                                                    const CommonOptions& common);

}  // namespace kvferry::bench
