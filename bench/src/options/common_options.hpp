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

/// How much to measure: kQuick shows within seconds that all of it runs.
enum class Effort : std::uint8_t { kFull, kQuick };

/// What every subcommand takes.
struct CommonOptions {
  std::string device = "host";
  std::string driver_library = {};
  std::string kernel_image_file = {};
  std::uint64_t seed = 1;
  std::string json_file = {};
  std::string csv_file = {};
  std::string markdown_file = {};
  /// Take the rows that json_file has, and measure the others only.
  bool resume = false;
  Effort effort = Effort::kFull;
  /// Rounds that are measured, and before them rounds that only warm up; nothing: as the
  /// subcommand and the effort say.
  std::optional<std::uint32_t> num_rounds = std::nullopt;
  std::optional<std::uint32_t> num_warm_up_rounds = std::nullopt;
  /// For tests: spoil one byte of what is verified in this round, from 1.
  std::optional<std::uint64_t> corrupt_round = std::nullopt;
  /// For tests: hold the rows of a stand-in against the performance model, too.
  bool model_stand_in = false;

  /// Throws ConfigError.
  [[nodiscard]] DeviceChoice device_choice() const;
  /// Throws ConfigError if all devices are asked for: only `link` goes over them.
  void require_one_device() const;
  /// `full` or `quick` rounds unless a number was given; at least one.
  [[nodiscard]] std::uint32_t rounds(std::uint32_t full, std::uint32_t quick) const;
  [[nodiscard]] std::uint32_t warm_up_rounds() const;
};

/// Adds them to `app`; `options` outlives it.
void add_common_options(CLI::App& app, CommonOptions& options);

}  // namespace kvferry::bench
