// SPDX-License-Identifier: Apache-2.0
// Figures of one run fit one another, on every device of this machine. No time is asserted.
#include "measure/numa.hpp"
#include "program.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

namespace kvferry::bench {
namespace {

using nlohmann::json;

class Figures : public testing::TestWithParam<std::string> {
 protected:
  /// Runs it and expects that every byte was verified.
  json report(const std::vector<std::string>& arguments) {
    auto [run, report] = run_for_report(joined(arguments, device_arguments(GetParam())));
    EXPECT_EQ(run.exit_code, 0) << run.err << run.out;
    for (const json& row : report.at("rows")) EXPECT_EQ(row.at("verified"), true) << row;
    return report;
  }
};

/// Whether co-run kernels on the device would take minutes.
bool emulated_too_slowly([[maybe_unused]] const std::string& device) {
#if defined(__SANITIZE_THREAD__)
  return device != "host";
#else
  return false;
#endif
}

double peak(const json& report, const std::string& direction) {
  return report.at("peaks").at(direction + "_gb_per_s");
}

void expect_ordered(const json& row, const std::vector<const char*>& keys) {
  for (std::size_t i = 1; i < keys.size(); ++i) {
    EXPECT_LE(row.at(keys[i - 1]).get<double>(), row.at(keys[i]).get<double>()) << row;
  }
}

/// Rate is bytes over time, and the percentage is the rate over this run's own peak.
void expect_consistent(const json& report, const json& row, const char* bytes, const char* time) {
  const double rate = row.at("gb_per_s");
  EXPECT_GT(rate, 0) << row;
  EXPECT_NEAR(rate, row.at(bytes).get<double>() / row.at(time).get<double>() / 1e3, rate * 1e-9);
  EXPECT_NEAR(row.at("percent_of_peak").get<double>(),
              100 * rate / peak(report, row.at("direction")), 1e-6 * (1 + 100 * rate))
      << row;
  if (!row.at("transfer_us_min").is_null()) {
    expect_ordered(row, {"transfer_us_min", "transfer_us_p50"});
  }
  expect_ordered(row, {"transfer_us_p50", "transfer_us_p99", "transfer_us_p999"});
  EXPECT_GT(row.at("submit_us_mean").get<double>(), 0) << row;
  EXPECT_GE(row.at("cpu_us_per_descriptor").get<double>(), 0) << row;
}

/// Rows of copies by the processor, and the others.
std::pair<json, json> split_host_copies(const json& rows) {
  json by_processor = json::array();
  json others = json::array();
  for (const json& row : rows) (row.at("threads").is_null() ? others : by_processor).push_back(row);
  return {by_processor, others};
}

TEST_P(Figures, OfTheLinkReferToItsPinnedRows) {
  const json found = report({"link", "--quick", "--link-size", "64KiB"});
  const auto [by_processor, rows] = split_host_copies(found.at("rows"));
  const bool one_node = memory_nodes().size() == 1;
  if (one_node) {
    EXPECT_EQ(rows.size(), 6U);
  }
  ASSERT_EQ(rows.size() % 6, 0U);
  for (const json& row : found.at("rows")) {
    expect_consistent(found, row, "bytes", "transfer_us_p50");
    EXPECT_EQ(row.at("bytes"), row.at("direction") == "both" ? 128 << 10 : 64 << 10);
    if (one_node) {
      EXPECT_EQ(row.at("numa_node"), memory_nodes().front());
    }
    EXPECT_EQ(row.at("device_ordinal"), 0);
  }
  for (const json& row : rows) {
    if (one_node && row.at("memory") == "pinned") {
      EXPECT_NEAR(row.at("percent_of_peak").get<double>(), 100, 1e-6);
    }
  }
  EXPECT_TRUE(found.at("peaks").at("device_gb_per_s").is_null()) << "the quick form leaves it out";
}

TEST_P(Figures, OfAllDevicesAreRowsForEach) {
  auto arguments = device_arguments(GetParam());
  arguments.at(1) += ":all";
  const auto [run, found] =
      run_for_report(joined({"link", "--quick", "--link-size", "64KiB"}, arguments));
  ASSERT_EQ(run.exit_code, 0) << run.err;
  std::map<std::uint64_t, int> rows;
  const json measured = split_host_copies(found.at("rows")).second;
  for (const json& row : measured) ++rows[row.at("device_ordinal").get<std::uint64_t>()];
  for (const auto& [device, count] : rows) EXPECT_EQ(count % 6, 0) << device;
  const std::string next = "Devices measured: " + std::to_string(rows.size());
  EXPECT_NE(found.at("notes").dump().find(next), std::string::npos) << found.at("notes");
  for (const char* subcommand : {"copy", "pipeline"}) {
    EXPECT_EQ(run_program(joined({subcommand}, arguments)).exit_code, 2);
  }
}

TEST_P(Figures, OfTheDevicesOwnMemoryComeWhenAskedFor) {
  if (GetParam() != "host") GTEST_SKIP() << "seconds of emulated kernels";
  const json found = report({"link", "--quick", "--link-size", "64KiB", "--device-rate"});
  EXPECT_GT(found.at("peaks").at("device_gb_per_s").get<double>(), 0);
}

TEST_P(Figures, OfTheHostBackEndStandBesideCopiesByTheProcessor) {
  for (const std::string subcommand : {"link", "copy"}) {
    auto arguments = std::vector<std::string>{subcommand, "--quick",        "--link-size",
                                              "64KiB",    "--host-threads", "1,3"};
    if (subcommand == "copy") {
      arguments = joined(arguments, {"--fragment", "1001", "--count", "16", "--path",
                                     "batch,staged", "--round-size", "64KiB"});
    }
    const json found = report(arguments);
    const auto [by_processor, rows] = split_host_copies(found.at("rows"));
    if (GetParam() != "host") {
      EXPECT_TRUE(by_processor.empty());
      for (const json& row : rows) EXPECT_TRUE(row.at("percent_of_host_copy").is_null());
      continue;
    }
    // Two kinds on two numbers of threads for each direction.
    ASSERT_EQ(by_processor.size() % (3U * 4), 0U);
    std::map<std::string, double> best;  // Shortest times by direction.
    for (const json& row : by_processor) {
      EXPECT_TRUE(row.at("path") == "memcpy" || row.at("path") == "streaming");
      EXPECT_TRUE(row.at("threads") == 1 || row.at("threads") == 3);
      const double time = row.at("transfer_us_min");
      double& least = best.try_emplace(row.at("direction"), time).first->second;
      least = std::min(least, time);
    }
    for (const json& row : rows) {
      if (row.at("memory") == "pageable") continue;
      const double percent =
          100 * best.at(row.at("direction")) / row.at("transfer_us_min").get<double>();
      EXPECT_NEAR(row.at("percent_of_host_copy").get<double>(), percent, 1e-6 * (1 + percent));
    }
  }
}

TEST_P(Figures, OfCopiesAreThoseOfOneTransferByEveryPath) {
  const json found = report({"copy", "--quick", "--link-size", "64KiB", "--fragment", "512,1001",
                             "--count", "8,40", "--placement", "shuffled,contiguous,runs:8",
                             "--round-size", "16KiB", "--staged-piece", "4KiB"});
  const json rows = split_host_copies(found.at("rows")).second;
  ASSERT_EQ(rows.size(), 4U * 3 * 2 * 2 * 3);
  std::set<std::string> paths;
  for (const json& row : rows) {
    expect_consistent(found, row, "bytes", "transfer_us_p50");
    paths.insert(row.at("path"));
    const std::uint64_t lanes = row.at("direction") == "both" ? 2 : 1;
    const std::uint64_t count = row.at("count");
    EXPECT_EQ(row.at("bytes"), lanes * count * row.at("fragment_bytes").get<std::uint64_t>());
    const bool calls = row.at("path") == "per_run" || row.at("path") == "batch";
    const std::uint64_t merged = row.at("placement") == "contiguous" ? count
                                 : row.at("placement") == "runs:8"   ? 8
                                                                     : 1;
    EXPECT_EQ(row.at("descriptors"), lanes * (calls ? count / merged : count)) << row;
  }
  EXPECT_EQ(paths, (std::set<std::string>{"per_run", "batch", "kernel", "staged"}));
}

TEST_P(Figures, OfThePipelineAreThoseOfARound) {
  const json found = report({"pipeline", "--quick", "--link-size", "64KiB", "--shape", "4x512",
                             "--blocks", "8", "--plans", "3", "--slots", "shuffled"});
  ASSERT_EQ(found.at("rows").size(), 3U);
  for (const json& row : found.at("rows")) {
    expect_consistent(found, row, "round_bytes", "round_us_p50");
    EXPECT_EQ(row.at("bytes"), 4 * 512 * 8);
    EXPECT_EQ(row.at("descriptors"), 32);
    EXPECT_EQ(row.at("round_bytes"), (row.at("direction") == "both" ? 6 : 3) * 4 * 512 * 8);
    EXPECT_GE(row.at("queue_us").get<double>(), 0);
  }
}

TEST_P(Figures, OfTagsStandBesideRoundsWithoutThem) {
  const json found = report({"pipeline", "--quick", "--link-size", "64KiB", "--shape", "4x512",
                             "--blocks", "8", "--plans", "3", "--verify", "all"});
  ASSERT_EQ(found.at("rows").size(), 3U);
  for (const json& row : found.at("rows")) {
    expect_consistent(found, row, "round_bytes", "round_us_p50");
    EXPECT_EQ(row.at("verify"), "all");
    const double rate = row.at("gb_per_s");
    const double share = row.at("tagged_share");
    EXPECT_NEAR(share * row.at("untagged_gb_per_s").get<double>(), rate, rate * 1e-9);
    // One round of warm-up, and three.
    EXPECT_EQ(row.at("blocks_checked"), row.at("direction") == "d2h" ? 0 : 4 * 3 * 8);
    EXPECT_EQ(row.at("blocks_damaged"), 0);
  }
}

TEST_P(Figures, OfAModelAreOfItsFragments) {
  // 2 ranks: 4 KV heads x 128 x 2 bytes x 16 tokens are 16 KiB of K, and of V, in each of 36
  // layers.
  const json copy = report({"copy", "--quick", "--link-size", "64KiB", "--model", "qwen3-8b",
                            "--tp", "2", "--layout", "per-layer", "--blocks", "2", "--path",
                            "batch", "--direction", "d2h", "--round-size", "1"});
  const json& row = copy.at("rows").at(0);
  EXPECT_EQ(row.at("fragment_bytes"), 32 << 10);
  EXPECT_EQ(row.at("count"), 2 * 36);
  EXPECT_NE(copy.at("notes").dump().find("36 x 32 KiB"), std::string::npos);

  const json pipeline = report({"pipeline", "--quick", "--link-size", "64KiB", "--model",
                                "gpt-oss-20b", "--kv-dtype", "fp8", "--layout", "kv-split",
                                "--blocks", "2", "--plans", "1", "--direction", "store"});
  // 8 heads x 64 x 16 tokens; K and V of the 12 layers of a group.
  EXPECT_EQ(pipeline.at("rows").at(0).at("fragment_bytes"), 8 << 10);
  EXPECT_EQ(pipeline.at("rows").at(0).at("bytes"), 2 * 24 * (8 << 10));
  EXPECT_NE(pipeline.at("notes").dump().find("24 x 8 KiB"), std::string::npos);
}

TEST_P(Figures, OfRowsWithAndWithoutWorkComeInOneReport) {
  if (emulated_too_slowly(GetParam())) GTEST_SKIP() << "minutes of emulated kernels under TSan";
  const json found = report({"pipeline", "--quick", "--link-size", "64KiB", "--shape", "1x512",
                             "--blocks", "4", "--iterations", "4", "--iteration-ms", "0.2",
                             "--co-run", "none,stream", "--direction", "store"});
  ASSERT_EQ(found.at("rows").size(), 3U);
  EXPECT_TRUE(found.at("rows").at(0).at("co_run").is_null());
  EXPECT_TRUE(found.at("copy_paths").contains("d2h"));
  EXPECT_EQ(found.at("rows").at(2).at("limit_gb_per_s"), 4.0);
}

TEST_P(Figures, OfARingSmallerThanAPlanAreVerifiedToo) {
  const json found =
      report({"pipeline", "--quick", "--link-size", "64KiB", "--shape", "2x1000", "--blocks", "8",
              "--ring", "5000", "--piece", "4000", "--direction", "store,both"});
  for (const json& row : found.at("rows")) {
    expect_consistent(found, row, "round_bytes", "round_us_p50");
  }
}

TEST_P(Figures, OfLoadsByEveryPathAreVerified) {
  for (const char* path : {"per_run", "batch", "kernel", "staged"}) {
    const json found = report({"pipeline", "--quick", "--link-size", "64KiB", "--shape", "3x512",
                               "--blocks", "8", "--slots", "runs:2", "--direction", "load,both",
                               "--path", path, "--load-staging", "16KiB"});
    for (const json& row : found.at("rows")) {
      expect_consistent(found, row, "round_bytes", "round_us_p50");
      EXPECT_EQ(row.at("path"), std::string("pipeline:") + path);
    }
  }
}

class BesideWork : public Figures {};

TEST_P(BesideWork, SlowDownIsOfIterationsAloneInThisRun) {
  if (emulated_too_slowly(GetParam())) GTEST_SKIP() << "minutes of emulated kernels under TSan";
  for (const char* place : {"compute", "own"}) {
    const json found =
        report({"pipeline", "--quick", "--link-size", "64KiB", "--shape", "2x512", "--blocks", "4",
                "--iterations", "8", "--iteration-ms", "0.2", "--co-run", "gemm,stream",
                "--co-run-place", place, "--direction", "store,load"});
    // Two kinds; stores as fast as can be and at a prefill's rate, loads.
    ASSERT_EQ(found.at("rows").size(), 2U * 3);
    for (const json& row : found.at("rows")) {
      expect_ordered(row, {"iteration_us_alone_p50", "iteration_us_alone_p99"});
      expect_ordered(row, {"iteration_us_p50", "iteration_us_p99"});
      const double alone = row.at("iteration_us_alone_p50");
      const double beside = row.at("iteration_us_p50");
      EXPECT_GT(alone, 0);
      EXPECT_NEAR(row.at("slow_down_percent").get<double>(), 100 * (beside / alone - 1), 1e-6);
      EXPECT_EQ(row.at("limit_gb_per_s").is_null() || row.at("limit_gb_per_s") == 4.0, true);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, Figures, testing::Values("host", "cuda_stand_in", "hip_stand_in"),
                         [](const auto& test) { return test.param; });
INSTANTIATE_TEST_SUITE_P(Devices, BesideWork,
                         testing::Values("host", "cuda_stand_in", "hip_stand_in"),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace kvferry::bench
