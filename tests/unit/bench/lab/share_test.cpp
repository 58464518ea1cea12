// SPDX-License-Identifier: Apache-2.0
// What `share` says fits itself; no time is asserted.
#include "program.hpp"

#include <gtest/gtest.h>

#include <array>
#include <filesystem>
#include <string>
#include <unistd.h>
#include <vector>

namespace kvferry::bench {
namespace {

using nlohmann::json;

std::vector<std::string> tiny_share(const std::vector<std::string>& more = {}) {
  return joined({"share", "--quick", "--rounds", "2", "--warm-up", "0", "--chunks", "64", "--time",
                 "0.02", "--join-size", "64MiB", "--block-size", "0,4KiB"},
                more);
}

TEST(Share, EveryRowIsVerifiedAndNothingIsLeft) {
  const auto [run, report] = run_for_report(tiny_share());
  ASSERT_EQ(run.exit_code, 0) << run.err;
  ASSERT_EQ(report.at("rows").size(), 13U);
  for (std::size_t i = 0; i < 10; ++i) {
    const json& row = report.at("rows")[i];
    EXPECT_EQ(row.at("verified"), true) << row;
    EXPECT_GT(row.at("steps_per_ms").get<double>(), 0) << row;
    EXPECT_EQ(row.at("over_one").is_null(), i % 5 == 0) << row;
    EXPECT_EQ(row.at("block_bytes").is_null(), i < 5) << row;
    // Half of the prompts fit; how many come again depends on the machine.
    EXPECT_GT(row.at("hit_percent").get<double>(), 0) << row;
    EXPECT_LT(row.at("hit_percent").get<double>(), 95) << row;
  }
  constexpr std::array kRounds{2, 20,
                               22};  // tiers that are made, that are joined, and tables for each
  for (std::size_t i = 10; i < 13; ++i) {
    const json& row = report.at("rows")[i];
    EXPECT_EQ(row.at("rounds"), kRounds[i - 10]) << row;
    EXPECT_LE(row.at("ms_p50").get<double>(), row.at("ms_p99").get<double>()) << row;
  }
  const std::string ours = "kvferry-lab-" + std::to_string(::getpid()) + "-";
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    EXPECT_FALSE(entry.path().filename().string().starts_with(ours)) << entry.path();
  }
}

TEST(Share, AnEngineThatDoesNotEndWellIsAMismatch) {
  const auto run = run_program(tiny_share({"--corrupt-round", "1"}));
  EXPECT_EQ(run.exit_code, 1) << run.err;
}

TEST(Share, WhatCannotBeMeantIsRefused) {
  const auto no_time = run_program({"share", "--quick", "--time", "0"});
  EXPECT_EQ(no_time.exit_code, 2);
  EXPECT_NE(no_time.err.find("--time 0 is not above 0"), std::string::npos) << no_time.err;
  const auto odd = run_program({"share", "--quick", "--block-size", "100"});
  EXPECT_EQ(odd.exit_code, 2);
  EXPECT_NE(odd.err.find("--block-size 100 is not a multiple of 8"), std::string::npos) << odd.err;
  const auto no_tmpfs = run_program(tiny_share({"--folder", "/proc"}));
  EXPECT_EQ(no_tmpfs.exit_code, 4);
}

}  // namespace
}  // namespace kvferry::bench
