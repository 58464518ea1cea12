// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "run_bench.hpp"

#include <nlohmann/json.hpp>

#include <string>
#include <vector>

namespace kvferry::bench {

/// What a run of the program left behind.
struct ProgramRun {
  int exit_code = -1;
  std::string out;
  std::string err;
};

/// The program that these tests are of.
[[nodiscard]] Program tested_program();

/// Runs it in this process.
[[nodiscard]] ProgramRun run_program(const std::vector<std::string>& arguments);

/// The same with --json; the report, or null if none was written.
struct ReportRun {
  ProgramRun run;
  nlohmann::json report;
};
[[nodiscard]] ReportRun run_for_report(std::vector<std::string> arguments);

/// Runs it with --json, and once more with --resume: that measures nothing again.
void expect_gone_on_with(const std::vector<std::string>& arguments);

/// Arguments that name a device of every machine: "host", "cuda_stand_in" or "hip_stand_in".
[[nodiscard]] std::vector<std::string> device_arguments(const std::string& device);

/// Their union.
[[nodiscard]] std::vector<std::string> joined(std::vector<std::string> first,
                                              const std::vector<std::string>& second);

/// Whether `part` is somewhere in `text`.
[[nodiscard]] inline bool says(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace kvferry::bench
