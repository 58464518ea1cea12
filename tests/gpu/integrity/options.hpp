// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lane.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace kvferry::integrity {

struct Options {
  std::string backend = "host";
  std::uint64_t seconds = 300;
  std::uint64_t seed = 0;  ///< 0: drawn, and printed.
  std::uint64_t threads = 2;
  /// Device memory for blocks of each thread, and as much pinned memory for slots.
  std::uint64_t pool_mib = 256;
  std::uint64_t max_block_kib = 2048;
  std::string json;  ///< File for the last line.
  Sabotage sabotage = Sabotage::kNone;
  bool help = false;
};

/// Throws ConfigError that names the argument.
[[nodiscard]] Options parse_options(const std::vector<std::string>& arguments);
/// How to call the program; what is for tests of the program itself is left out.
[[nodiscard]] std::string usage();

}  // namespace kvferry::integrity
