// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "options/device_choice.hpp"

#include <cstdint>
#include <optional>
#include <string>

namespace CLI {
class App;
}

namespace kvferry::bench {

/// How much to measure. kQuick shows within seconds that everything runs.
enum class Effort : std::uint8_t { kFull, kQuick };

/// The options of every subcommand.
struct CommonOptions {
  /// Empty: none was named. run_bench() takes the first GPU then, and the host if there is none.
  std::string device = {};
  std::string driver_library = {};
  std::string kernel_image_file = {};
  std::uint64_t seed = 1;
  std::string json_file = {};
  std::string csv_file = {};
  std::string markdown_file = {};
  /// Take the rows from json_file, and measure only the others.
  bool resume = false;
  /// Show all columns, however wide the table gets.
  bool wide = false;
  Effort effort = Effort::kFull;
  /// Measured rounds, and warm-up rounds before them; unset: by the subcommand and the effort.
  std::optional<std::uint32_t> num_rounds = std::nullopt;
  std::optional<std::uint32_t> num_warm_up_rounds = std::nullopt;
  /// For tests: number of a round, from 1, in which one verified byte is corrupted.
  std::optional<std::uint64_t> corrupt_round = std::nullopt;
  /// For tests: compare the rows of a stand-in with the performance model, too.
  bool model_stand_in = false;

  /// `device`, or the host if that is empty. Throws ConfigError.
  [[nodiscard]] DeviceChoice device_choice() const;
  /// Throws ConfigError if all devices are requested: only `link` measures several.
  void require_one_device() const;
  /// Number of rounds: the given one, else `full` or `quick`; at least one.
  [[nodiscard]] std::uint32_t rounds(std::uint32_t full, std::uint32_t quick) const;
  [[nodiscard]] std::uint32_t warm_up_rounds() const;
};

/// Adds the options to `app`; `options` outlives `app`.
void add_common_options(CLI::App& app, CommonOptions& options);

}  // namespace kvferry::bench
