// SPDX-License-Identifier: Apache-2.0
#include "options/common_options.hpp"

#include <CLI/CLI.hpp>

namespace kvferry::bench {

DeviceChoice CommonOptions::device_choice() const {
  DeviceChoice choice = device_choice_from(device.empty() ? "host" : device);
  choice.driver_library = driver_library;
  choice.kernel_image_file = kernel_image_file;
  if (choice.kind == gpu::BackendKind::kHost && !driver_library.empty()) {
    throw ConfigError("--driver-library needs --device cuda or hip: the host has no driver");
  }
  return choice;
}

void CommonOptions::require_one_device() const {
  if (device_choice().range == DeviceChoice::Range::kOne) return;
  throw ConfigError("only link measures all devices: name one, for example cuda:0");
}

std::uint32_t CommonOptions::rounds(std::uint32_t full, std::uint32_t quick) const {
  return num_rounds.value_or(effort == Effort::kQuick ? quick : full);
}

std::uint32_t CommonOptions::warm_up_rounds() const {
  return num_warm_up_rounds.value_or(effort == Effort::kQuick ? 1 : 2);
}

void add_common_options(CLI::App& app, CommonOptions& options) {
  app.add_option("--device", options.device,
                 "cuda, hip, host; cuda:1 is the second device; cuda:all (link only); "
                 "cuda_stand_in, hip_stand_in: a driver without a GPU, to try the paths, not "
                 "to measure [the first GPU; without one: host]")
      ->type_name("DEVICE");
  app.add_option("--driver-library", options.driver_library,
                 "library to open instead of the vendor's driver")
      ->type_name("FILE");
  app.add_option("--kernel-image", options.kernel_image_file,
                 "file with a code object to load instead of that of the build")
      ->type_name("FILE");
  app.add_option("--seed", options.seed, "seed of patterns and placements")->capture_default_str();
  app.add_option("--rounds", options.num_rounds, "measured rounds of each row")
      ->check(CLI::Range(1, 100000));
  app.add_option("--warm-up", options.num_warm_up_rounds,
                 "rounds before the measured ones, which are verified but not counted")
      ->check(CLI::Range(0, 100000));
  app.add_flag_callback(
      "--quick", [&options] { options.effort = Effort::kQuick; },
      "small sizes and few rounds, which only show whether it runs");
  app.add_flag("--wide", options.wide,
               "show every column; otherwise those that fit into the terminal, or into 100 "
               "characters without one");
  app.add_option("--json", options.json_file, "write the report as JSON to this file")
      ->type_name("FILE");
  app.add_option("--csv", options.csv_file, "write the rows as CSV to this file")
      ->type_name("FILE");
  app.add_option("--markdown", options.markdown_file, "write the report as Markdown to this file")
      ->type_name("FILE");
  app.add_flag("--resume", options.resume,
               "take the rows that the --json file has, and measure only the others");
  app.add_option("--corrupt-round", options.corrupt_round)->group("");
  app.add_flag("--model-stand-in", options.model_stand_in)->group("");
}

}  // namespace kvferry::bench
