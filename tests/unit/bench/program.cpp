// SPDX-License-Identifier: Apache-2.0
#include "program.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <unistd.h>

namespace kvferry::bench {
namespace {

// Tests run in processes at once.
std::filesystem::path scratch_file(const std::string& name) {
  return std::filesystem::path(testing::TempDir()) /
         ("kvferry_bench_" + std::to_string(::getpid()) + "_" + name);
}

}  // namespace

ProgramRun run_program(const std::vector<std::string>& arguments) {
  std::ostringstream out;
  std::ostringstream err;
  ProgramRun run;
  run.exit_code = run_bench(tested_program(), arguments, out, err);
  run.out = out.str();
  run.err = err.str();
  return run;
}

ReportRun run_for_report(std::vector<std::string> arguments) {
  const std::filesystem::path file = scratch_file("report.json");
  arguments.insert(arguments.end(), {"--json", file.string()});
  ReportRun result;
  result.run = run_program(arguments);
  if (std::ifstream in(file); in) result.report = nlohmann::json::parse(in);
  std::filesystem::remove(file);
  return result;
}

void expect_gone_on_with(const std::vector<std::string>& arguments) {
  SCOPED_TRACE(arguments.front());
  const std::filesystem::path file = scratch_file("gone_on_with.json");
  std::filesystem::remove(file);
  const std::vector<std::string> with_file = joined(arguments, {"--json", file.string()});
  const auto report = [&file] {
    std::ifstream in(file);
    return nlohmann::json::parse(in);
  };
  ASSERT_EQ(run_program(with_file).exit_code, 0);
  const nlohmann::json first = report();
  EXPECT_GT(first.at("rows").size(), 1U);
  ASSERT_EQ(run_program(joined(with_file, {"--resume"})).exit_code, 0);
  EXPECT_EQ(report().at("rows"), first.at("rows"));
  EXPECT_EQ(report().at("peaks"), first.at("peaks"));
  std::filesystem::remove(file);
}

std::vector<std::string> device_arguments(const std::string& device) {
  if (device == "host") return {"--device", "host"};
  const bool cuda = device == "cuda_stand_in";
  return {"--device", device, "--driver-library", cuda ? KVFERRY_FAKE_CUDA : KVFERRY_FAKE_HIP};
}

std::vector<std::string> joined(std::vector<std::string> first,
                                const std::vector<std::string>& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

}  // namespace kvferry::bench
