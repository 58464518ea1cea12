// SPDX-License-Identifier: Apache-2.0
// What scripts rely on: exit codes, help, the forms of a report.
#include "program.hpp"

#include "options/device_choice.hpp"
#include "options/pipeline_options.hpp"
#include "report/transfer_row.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace kvferry::bench {
namespace {

const std::vector<std::string> kSubcommands = {"link", "copy", "pipeline"};

std::vector<std::string> tiny(const std::string& subcommand) {
  std::vector<std::string> arguments = {subcommand, "--quick",     "--rounds",
                                        "2",        "--link-size", "64KiB"};
  if (subcommand == "copy") {
    return joined(arguments, {"--fragment", "512", "--count", "8", "--round-size", "8KiB"});
  }
  if (subcommand == "pipeline") {
    return joined(arguments, {"--shape", "2x512", "--blocks", "4", "--plans", "2"});
  }
  return arguments;
}

TEST(Program, HelpTeachesAndSaysUnits) {
  const ProgramRun all = run_program({"--help"});
  EXPECT_EQ(all.exit_code, 0);
  EXPECT_TRUE(says(all.out, "GB = 1e9 bytes")) << all.out;
  for (const std::string& subcommand : kSubcommands) {
    EXPECT_TRUE(says(all.out, subcommand)) << all.out;
    const ProgramRun help = run_program({subcommand, "--help"});
    EXPECT_EQ(help.exit_code, 0);
    EXPECT_TRUE(says(help.out, "GB/s")) << help.out;
    EXPECT_TRUE(says(help.out, "bytes")) << help.out;
    EXPECT_TRUE(says(help.out, "3: no such device")) << help.out;
    EXPECT_FALSE(says(help.out, "corrupt")) << "for tests only";
  }
}

TEST(Program, BadUsageIsTwoWithAHint) {
  const std::vector<std::vector<std::string>> bad = {
      {},
      {"speed"},
      {"link", "--fast"},
      {"link", "--link-size", "much"},
      {"meta"},
      {"trace", "--traffic", "all"},
      {"link", "--device", "tpu"},
      {"link", "--device", "cuda:x"},
      {"link", "--numa-node", "1000"},
      {"link", "--numa-node", "first"},
      {"link", "--host-threads", "0"},
      {"copy", "--device", "host:all"},
      {"link", "--driver-library", "libcuda.so"},
      {"link", "--rounds", "0"},
      {"copy", "--path", "teleport"},
      {"copy", "--direction", "up"},
      {"copy", "--placement", "random"},
      {"copy", "--model", "gpt-4"},
      {"copy", "--model", "qwen3-8b", "--fragment", "4KiB"},
      {"copy", "--model", "qwen3-8b", "--count", "8"},
      {"copy", "--blocks", "8"},
      {"copy", "--tp", "2"},
      {"pipeline", "--model", "qwen3-8b", "--shape", "64x8KiB"},
      {"pipeline", "--model", "qwen3-8b", "--tp", "3"},
      {"pipeline", "--model", "qwen3-8b", "--layout", "diagonal"},
      {"pipeline", "--model", "qwen3-8b", "--kv-dtype", "fp64"},
      {"pipeline", "--model", "deepseek-v3", "--layout", "kv-split"},
      {"pipeline", "--layout", "per-layer"},
      {"pipeline", "--shape", "8KiB"},
      {"pipeline", "--co-run", "chess"},
      {"pipeline", "--co-run-place", "elsewhere"},
      {"pipeline", "--verify", "some"},
      {"pipeline", "--verify", "all", "--co-run", "gemm"},
      {"pipeline", "--inject", "0.1"},
      {"pipeline", "--verify", "all", "--inject", "2"},
      {"pipeline", "--verify", "all", "--inject", "0.1", "--device", "cuda_stand_in"},
      {"pipeline", "--ring", "1"},
      {"pipeline", "--path", "teleport"},
      {"pipeline", "--store-bandwidth-limit", "slow"},
  };
  for (const auto& arguments : bad) {
    const ProgramRun run = run_program(arguments);
    const std::string line = arguments.empty() ? "(nothing)" : arguments.back();
    EXPECT_EQ(run.exit_code, 2) << line;
    EXPECT_TRUE(says(run.err, "--help")) << line << ": " << run.err;
    EXPECT_TRUE(run.out.empty()) << line << ": " << run.out;
  }
}

TEST(Program, ListsTheModelsItKnows) {
  for (const std::string subcommand : {"copy", "pipeline"}) {
    const ProgramRun run = run_program({subcommand, "--model", "list"});
    EXPECT_EQ(run.exit_code, 0) << run.err;
    EXPECT_TRUE(says(run.out, "gpt-oss-20b")) << run.out;
    EXPECT_TRUE(says(run.out, "meta-llama/Llama-3.1-8B")) << run.out;
  }
  const ProgramRun unknown = run_program({"copy", "--model", "gpt-4"});
  EXPECT_TRUE(says(unknown.err, "llama-3.1-8b, ")) << unknown.err;
}

TEST(Program, AnAbsentDeviceIsThreeInOneLine) {
  for (const std::string& subcommand : kSubcommands) {
    const ProgramRun run = run_program(
        {subcommand, "--device", "cuda", "--driver-library", "libkvferry_there_is_none.so"});
    EXPECT_EQ(run.exit_code, 3);
    EXPECT_EQ(std::count(run.err.begin(), run.err.end(), '\n'), 1) << run.err;
    EXPECT_TRUE(says(run.err, "cuda:0 is not available")) << run.err;
  }
  EXPECT_EQ(run_program({"link", "--device", "host:1"}).exit_code, 3);
}

TEST(Program, AStandInIsNamedInTheReportAndSaysThatItMeasuresNothing) {
  for (const std::string device : {"cuda_stand_in", "hip_stand_in"}) {
    const auto [run, report] = run_for_report(joined(tiny("copy"), device_arguments(device)));
    ASSERT_EQ(run.exit_code, 0) << run.err;
    EXPECT_EQ(report.at("backend"), device);
    EXPECT_TRUE(says(run.out, "no figure means anything")) << run.out;
  }
}

TEST(Program, AStandInIsFoundByTheEnvironmentOrBesideTheProgram) {
  ::setenv("KVFERRY_FAKE_HIP", "/elsewhere/libfake.so", 1);
  EXPECT_EQ(stand_in_library(gpu::BackendKind::kHip, "/carried/kvferry-bench"),
            "/elsewhere/libfake.so");
  ::unsetenv("KVFERRY_FAKE_HIP");
  EXPECT_EQ(stand_in_library(gpu::BackendKind::kHip, "/carried/kvferry-bench"),
            "/carried/libfake_hip.so");
  const std::filesystem::path built = KVFERRY_FAKE_CUDA;
  const auto program = built.parent_path() / ".." / ".." / "bench" / "kvferry-bench";
  EXPECT_TRUE(
      std::filesystem::equivalent(stand_in_library(gpu::BackendKind::kCuda, program), built));
}

TEST(Program, APieceSweepIsARowForEachPiece) {
  const auto [run, report] = run_for_report(
      joined(tiny("pipeline"), {"--piece", "1KiB,2KiB,auto", "--direction", "load,both", "--co-run",
                                "none,gemm", "--iterations", "4"}));
  ASSERT_EQ(run.exit_code, 0) << run.err;
  std::vector<std::uint64_t> pieces;
  for (const auto& row : report.at("rows")) pieces.push_back(row.at("piece_bytes"));
  // load; both; beside: load, both, both with a limit.
  const std::vector<std::uint64_t> sweep = {1024, 2048, std::uint64_t{8} << 20U};
  std::vector<std::uint64_t> wanted;
  for (int i = 0; i < 5; ++i) wanted.insert(wanted.end(), sweep.begin(), sweep.end());
  EXPECT_EQ(pieces, wanted);
}

TEST(Program, TagsFindWhatIsInjectedAndNothingElse) {
  for (const std::string path : {"batch", "kernel"}) {
    const auto [run, report] = run_for_report(
        {"pipeline", "--quick",  "--rounds", "20",      "--link-size", "64KiB",       "--shape",
         "2x512",    "--blocks", "64",       "--plans", "4",           "--direction", "store",
         "--path",   path,       "--verify", "all",     "--inject",    "0.01"});
    ASSERT_EQ(run.exit_code, 0) << run.err << run.out;
    const auto& check = report.at("injections");
    EXPECT_EQ(check.at("stored"), 20 * 4 * 64);
    EXPECT_GT(check.at("arrived"), 10);
    EXPECT_EQ(check.at("found"), check.at("arrived"));
    EXPECT_EQ(check.at("missed"), 0);
    EXPECT_EQ(check.at("invented"), 0);
    EXPECT_GT(check.at("replaced"), 0);
    EXPECT_TRUE(says(run.out, "blocks arrived damaged; the tags found")) << run.out;
  }
}

// A single piece in flight would make the link wait between two.
TEST(Program, TwoPiecesFitInFlightUnlessTheOptionsSayOtherwise) {
  constexpr std::uint64_t kPiece = std::uint64_t{64} << 20U;
  PipelineSettings settings = pipeline_settings({}, {});
  const transfer::TransferOptions usual;
  const PipelineSubject subject{Traffic::kBoth, std::nullopt, kPiece};
  EXPECT_EQ(transfer_options(settings, subject).piece_bytes, kPiece);
  EXPECT_EQ(transfer_options(settings, subject).max_in_flight_bytes, 2 * kPiece);
  EXPECT_EQ(transfer_options(settings, subject).load_staging_bytes, 2 * kPiece);
  EXPECT_EQ(transfer_options(settings, {}).piece_bytes, usual.piece_bytes);
  EXPECT_EQ(transfer_options(settings, {}).max_in_flight_bytes, usual.max_in_flight_bytes);
  PipelineOptions told;
  told.in_flight = "8MiB";
  settings = pipeline_settings(told, {});
  EXPECT_EQ(transfer_options(settings, subject).max_in_flight_bytes, std::uint64_t{8} << 20U);
}

TEST(Program, AMismatchIsOneAndIsReported) {
  for (const std::string& subcommand : kSubcommands) {
    const auto [run, report] = run_for_report(joined(tiny(subcommand), {"--corrupt-round", "2"}));
    EXPECT_EQ(run.exit_code, 1) << subcommand << run.err;
    EXPECT_TRUE(says(run.out, "DATA MISMATCH: round 2")) << run.out;
    EXPECT_EQ(report.at("verified"), false);
    EXPECT_TRUE(says(report.at("mismatch").get<std::string>(), "round 2"));
  }
}

TEST(Program, AFileThatCannotBeWrittenIsFour) {
  const ProgramRun run =
      run_program(joined(tiny("link"), {"--csv", "/proc/kvferry/there/is/no/such/folder"}));
  EXPECT_EQ(run.exit_code, 4);
  EXPECT_TRUE(says(run.err, "cannot be written")) << run.err;
}

TEST(Program, ReportsOfEveryFormHaveTheSameRows) {
  const auto folder = std::filesystem::path(testing::TempDir());
  const auto csv = folder / "kvferry_bench_forms.csv";
  const auto markdown = folder / "kvferry_bench_forms.md";
  const auto [run, report] = run_for_report(
      joined(tiny("link"), {"--csv", csv.string(), "--markdown", markdown.string()}));
  ASSERT_EQ(run.exit_code, 0) << run.err;
  for (const char* key : {"schema", "program", "version", "subcommand", "arguments", "backend",
                          "ordinal", "device", "started_at", "seed", "quick", "warm_up_rounds",
                          "verified", "mismatch", "peaks", "notes", "rows"}) {
    EXPECT_TRUE(report.contains(key)) << key;
  }
  const std::vector<Column> columns = table_of(std::vector<TransferRow>()).columns;
  for (const auto& row : report.at("rows")) {
    EXPECT_EQ(row.size(), columns.size());
    for (const Column& column : columns) EXPECT_TRUE(row.contains(column.key)) << column.key;
  }
  const auto lines = [](const std::filesystem::path& file, const std::string& prefix) {
    std::ifstream in(file);
    std::size_t count = 0;
    for (std::string line; std::getline(in, line);) count += line.starts_with(prefix) ? 1U : 0U;
    return count;
  };
  EXPECT_EQ(lines(csv, ""), report.at("rows").size() + 1);
  EXPECT_EQ(lines(markdown, "|"), report.at("rows").size() + 2);
  std::filesystem::remove(csv);
  std::filesystem::remove(markdown);
}

}  // namespace
}  // namespace kvferry::bench
