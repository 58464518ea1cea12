// SPDX-License-Identifier: Apache-2.0
// What the performance model adds to reports.
#include "program.hpp"
#include "report/expect_row.hpp"
#include "scratch_folder.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <string>

namespace kvferry::bench {
namespace {

using nlohmann::json;
using Words = std::vector<std::string>;

TEST(Expect, NeedsNoDeviceAndHasRowsOfCopyAndPipeline) {
  const auto [run, report] = run_for_report({"expect", "--gpu", "h200"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_TRUE(says(run.out, "nothing was measured")) << run.out;
  EXPECT_EQ(report.at("gpu").at("name"), "h200");
  EXPECT_EQ(report.at("gpu").at("multiprocessors"), 132);
  const std::vector<Column> columns = table_of(std::vector<ExpectRow>()).columns;
  std::set<std::string> paths;
  std::set<std::string> beside;
  for (const json& row : report.at("rows")) {
    EXPECT_EQ(row.size(), columns.size());
    for (const Column& column : columns) EXPECT_TRUE(row.contains(column.key)) << column.key;
    EXPECT_GT(row.at("expected_gb_per_s").get<double>(), 0) << row;
    EXPECT_LE(row.at("percent_of_peak").get<double>(), 100.0001) << row;
    EXPECT_FALSE(row.at("bound_by").is_null()) << row;
    EXPECT_EQ(row.at("expected_slow_down_percent").is_null(), row.at("co_run").is_null()) << row;
    paths.insert(row.at("path"));
    beside.insert(row.at("co_run").is_null() ? "" : row.at("co_run").get<std::string>());
  }
  EXPECT_EQ(paths, (std::set<std::string>{"per_run", "batch", "kernel", "staged", "pipeline"}));
  EXPECT_EQ(beside, (std::set<std::string>{"", "gemm", "stream"}));
}

TEST(Expect, TakesTheOptionsOfEither) {
  const ScratchFolder folder;
  const std::string csv = (folder.path() / "e.csv").string();
  const auto [run, copy] =
      run_for_report({"expect", "--gpu", "l40s", "--csv", csv, "copy", "--fragment", "8KiB,1MiB",
                      "--count", "64", "--path", "batch", "--direction", "h2d"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  ASSERT_EQ(copy.at("rows").size(), 2U);
  EXPECT_EQ(copy.at("rows").at(0).at("fragment_bytes"), 8192);
  EXPECT_EQ(copy.at("rows").at(1).at("bytes"), 64 << 20);
  std::ifstream in(csv);
  std::string titles;
  std::getline(in, titles);
  EXPECT_TRUE(titles.starts_with("direction,path,placement,fragment_bytes,")) << titles;
  EXPECT_TRUE(titles.ends_with(",expected_slow_down_percent,bound_by")) << titles;
  const auto pipeline = run_for_report({"expect", "pipeline", "--model", "qwen3-8b", "--layout",
                                        "per-layer", "--co-run", "gemm", "--direction", "store",
                                        "--piece", "8MiB,32MiB", "--gpu", "mi300x"});
  ASSERT_EQ(pipeline.run.exit_code, 0) << pipeline.run.err;
  // Without a limit, and at 4 GB/s.
  EXPECT_EQ(pipeline.report.at("rows").size(), 2U * 2);
  EXPECT_EQ(pipeline.report.at("rows").at(3).at("limit_gb_per_s"), 4.0);
  EXPECT_TRUE(says(pipeline.report.at("notes").dump(), "36 x 64 KiB"));
}

TEST(Expect, ListsTheGpusAndRefusesOthers) {
  const ProgramRun list = run_program({"expect", "--gpu", "list"});
  EXPECT_EQ(list.exit_code, 0);
  for (const char* name :
       {"a100-pcie", "a100-sxm", "h100-pcie", "h100-sxm", "h200", "b200", "l40s", "mi300x"}) {
    EXPECT_TRUE(says(list.out, name)) << list.out;
  }
  for (const Words& bad : {Words{"expect", "--gpu", "tpu"}, Words{"expect", "--device", "cuda"},
                           Words{"expect", "link"}, Words{"expect", "copy", "--co-run", "gemm"},
                           Words{"expect", "copy", "--direction", "up"}}) {
    const ProgramRun run = run_program(bad);
    EXPECT_EQ(run.exit_code, 2) << bad.back();
    EXPECT_TRUE(says(run.err, "--help")) << run.err;
    EXPECT_TRUE(run.out.empty()) << run.out;
  }
  EXPECT_TRUE(says(run_program({"expect", "--gpu", "tpu"}).err, "'tpu' is not a known GPU"));
}

const Words kCopy = {"copy",         "--quick", "--link-size", "64KiB",    "--fragment",
                     "512",          "--count", "8",           "--rounds", "2",
                     "--round-size", "8KiB",    "--warm-up",   "0"};

// The model judges our code on a GPU; on these there is nothing to judge.
TEST(MeasuredRows, ExpectNothingOfTheHostAndOfStandIns) {
  for (const char* device : {"host", "cuda_stand_in"}) {
    const auto [run, report] = run_for_report(joined(kCopy, device_arguments(device)));
    ASSERT_EQ(run.exit_code, 0) << run.err;
    for (const json& row : report.at("rows")) {
      for (const char* key :
           {"expected_gb_per_s", "expected_slow_down_percent", "bound_by", "off_model"}) {
        EXPECT_TRUE(row.at(key).is_null()) << row;
      }
    }
    EXPECT_TRUE(report.at("peaks").at("device_gb_per_s").is_null());
  }
}

TEST(MeasuredRows, OfCopiesAreHeldAgainstTheModel) {
  const auto [run, report] = run_for_report(
      joined(joined(kCopy, {"--model-stand-in"}), device_arguments("cuda_stand_in")));
  ASSERT_EQ(run.exit_code, 0) << run.err;
  for (const json& row : report.at("rows")) {
    const double expected = row.at("expected_gb_per_s");
    EXPECT_GT(expected, 0) << row;
    // By the peaks of this run.
    const double peak = report.at("peaks").at(row.at("direction").get<std::string>() + "_gb_per_s");
    EXPECT_LE(expected, peak * 1.0001) << row;
    EXPECT_FALSE(row.at("bound_by").is_null()) << row;
    EXPECT_TRUE(row.at("expected_slow_down_percent").is_null()) << row;
    const double ratio = row.at("gb_per_s").get<double>() / expected;
    const json off = ratio < 0.8 ? json("slower") : ratio > 1.2 ? json("faster") : json();
    EXPECT_EQ(row.at("off_model"), off) << row;
  }
}

TEST(MeasuredRows, BesideWorkAreHeldAgainstTheExpectedSlowDown) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "minutes of emulated kernels under TSan";
#endif
  const auto [run, report] =
      run_for_report(joined({"pipeline", "--quick", "--link-size", "64KiB", "--shape", "1x512",
                             "--blocks", "4", "--iterations", "4", "--iteration-ms", "0.2",
                             "--co-run", "none,gemm", "--direction", "store", "--model-stand-in"},
                            device_arguments("cuda_stand_in")));
  ASSERT_EQ(run.exit_code, 0) << run.err;
  ASSERT_EQ(report.at("rows").size(), 3U);
  for (const json& row : report.at("rows")) {
    EXPECT_GT(row.at("expected_gb_per_s").get<double>(), 0) << row;
    EXPECT_EQ(row.at("expected_slow_down_percent").is_null(), row.at("co_run").is_null()) << row;
  }
  // The last one has a limit.
  EXPECT_LE(report.at("rows").at(2).at("expected_gb_per_s").get<double>(), 4.0);
}

}  // namespace
}  // namespace kvferry::bench
