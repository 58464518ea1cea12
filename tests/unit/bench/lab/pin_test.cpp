// SPDX-License-Identifier: Apache-2.0
// What `pin` says fits itself, on every device of this machine; no time is asserted.
#include "kvferry/cpu_tier/memory/host_mapping.hpp"
#include "kvferry/cpu_tier/memory/memory_budget.hpp"

#include "pin/bare_populate.hpp"
#include "program.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <sys/mman.h>
#include <vector>

namespace kvferry::bench {
namespace {

using nlohmann::json;

const std::vector<std::string> kTiny = {"pin",     "--quick",    "--size",    "4MiB",
                                        "--piece", "2MiB,whole", "--threads", "1,3"};

class Pin : public testing::TestWithParam<std::string> {};

TEST_P(Pin, PartsOfARowAreNoMoreThanItsTotal) {
  const auto [run, report] = run_for_report(
      joined(joined(kTiny, {"--pages", "normal,transparent"}), device_arguments(GetParam())));
  ASSERT_EQ(run.exit_code, 0) << run.err << run.out;
  // Two kinds of pages, two numbers of threads; two pieces and the arena.
  ASSERT_EQ(report.at("rows").size(), 2U * 2 * (2 + 1));
  std::size_t num_arenas = 0;
  for (const json& row : report.at("rows")) {
    EXPECT_EQ(row.at("verified"), true) << row;
    EXPECT_EQ(row.at("bytes"), 4 << 20);
    EXPECT_GT(row.at("total_s").get<double>(), 0);
    EXPECT_GE(row.at("huge_percent").get<double>(), 0);
    EXPECT_LE(row.at("huge_percent").get<double>(), 100);
    if (row.at("pages") == "normal") {
      EXPECT_EQ(row.at("huge_percent"), 0.0);
    }
    const double ready = row.at("ready_s");
    EXPECT_GT(ready, 0);
    EXPECT_LE(ready, row.at("total_s").get<double>()) << row;
    if (row.at("memory") == "arena") {
      ++num_arenas;
      EXPECT_TRUE(row.at("populate_s").is_null());
      EXPECT_GT(row.at("percent_of_bare_populate").get<double>(), 0) << row;
      continue;
    }
    EXPECT_EQ(row.at("memory"), "own");
    EXPECT_TRUE(row.at("percent_of_bare_populate").is_null()) << row;
    const double populate = row.at("populate_s");
    EXPECT_GT(populate, 0);
    EXPECT_NEAR(row.at("populate_gb_per_s").get<double>() * populate, (4 << 20) / 1e9, 1e-6);
    EXPECT_LE(populate + row.at("register_s").get<double>(), ready) << row;
    EXPECT_LE(ready + row.at("unregister_s").get<double>(), row.at("total_s").get<double>()) << row;
  }
  EXPECT_EQ(num_arenas, 2U * 2);
}

INSTANTIATE_TEST_SUITE_P(Devices, Pin, testing::Values("host", "cuda_stand_in", "hip_stand_in"),
                         [](const auto& test) { return test.param; });

TEST(PinCommand, AnEmptyPoolOfHugePagesIsANoteWithTheRemedy) {
  const cpu_tier::HugePagePool pool = cpu_tier::huge_page_pool();
  const auto [run, report] = run_for_report(joined(kTiny, {"--pages", "huge"}));
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const json& rows = report.at("rows");
  const auto of_pool = std::count_if(rows.begin(), rows.end(),
                                     [](const json& row) { return row.at("pages") == "huge"; });
  if (pool.free_bytes() >= (4U << 20)) {
    EXPECT_EQ(of_pool, 2 * (2 + 1));
    EXPECT_EQ(rows.at(0).at("huge_percent"), 100.0);
  } else {
    EXPECT_EQ(of_pool, 0);
    EXPECT_NE(run.out.find("sysctl vm.nr_hugepages="), std::string::npos) << run.out;
  }
}

TEST(PinCommand, OneOfTheRoundsIsHeldAgainstTheBarePopulateOfTheSameRound) {
  const auto [run, report] =
      run_for_report({"pin", "--quick", "--size", "4MiB", "--piece", "whole", "--threads", "1",
                      "--pages", "normal", "--rounds", "1"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const json& bare = report.at("rows").at(0);
  const json& arena = report.at("rows").at(1);
  ASSERT_EQ(arena.at("memory"), "arena");
  // Of a single round the rows show the very times that are compared.
  EXPECT_NEAR(arena.at("percent_of_bare_populate").get<double>(),
              100 * bare.at("populate_s").get<double>() / arena.at("ready_s").get<double>(), 1e-6);
}

TEST(PinCommand, TheArenaCanBeLeftOut) {
  const auto [run, report] = run_for_report(joined(kTiny, {"--pages", "normal", "--no-arena"}));
  ASSERT_EQ(run.exit_code, 0) << run.err;
  ASSERT_EQ(report.at("rows").size(), 4U);
  for (const json& row : report.at("rows")) EXPECT_EQ(row.at("memory"), "own");
}

TEST(PinCommand, WithoutASizeItTakesWhatTheMachineAffords) {
  const std::uint64_t room = cpu_tier::room_bytes(cpu_tier::read_memory_limits());
  const auto [run, report] = run_for_report(
      {"pin", "--quick", "--rounds", "1", "--threads", "1", "--pages", "transparent"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const std::uint64_t bytes = report.at("rows").at(0).at("bytes");
  EXPECT_EQ(bytes % cpu_tier::huge_page_bytes(), 0U);
  // Others take memory between the two looks at it.
  if (room > (4ULL << 30)) {
    EXPECT_EQ(bytes, 256ULL << 20);
  } else {
    EXPECT_LE(bytes, std::max(room / 2, cpu_tier::huge_page_bytes()));
  }
}

TEST(PinCommand, MoreThanTheMachineHasIsFourAndSaysWhatLimits) {
  const ProgramRun run = run_program({"pin", "--size", "512TiB"});
  EXPECT_EQ(run.exit_code, 4);
  EXPECT_NE(run.err.find("MemAvailable"), std::string::npos) << run.err;
  EXPECT_TRUE(run.out.empty());
}

TEST(PinCommand, AWrongPageIsAMismatch) {
  const auto [run, report] = run_for_report(joined(kTiny, {"--corrupt-round", "2"}));
  EXPECT_EQ(run.exit_code, 1) << run.err;
  EXPECT_NE(run.out.find("DATA MISMATCH: round 2: pin: page"), std::string::npos) << run.out;
}

TEST(PinCommand, BadUsageIsTwoWithAHint) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> bad = {
      {{"--size", "5000"}, "multiple of a huge page"},
      {{"--size", "some"}, "not a size"},
      {{"--piece", "4KiB"}, "multiple of a huge page"},
      {{"--pages", "giant"}, "normal, transparent or huge"},
      {{"--threads", "0"}, "--threads"},
  };
  for (const auto& [arguments, hint] : bad) {
    const ProgramRun run = run_program(joined({"pin"}, arguments));
    EXPECT_EQ(run.exit_code, 2) << hint;
    EXPECT_NE(run.err.find(hint), std::string::npos) << run.err;
  }
}

TEST(BarePopulate, EveryNumberOfThreadsTouchesEveryPage) {
  for (const std::uint32_t threads : {1U, 2U, 3U, 16U}) {
    const cpu_tier::HostMapping memory(5 << 20, cpu_tier::PageKind::kNormal);
    bare_populate(memory.bytes(), threads);
    const std::uint64_t num_pages = memory.size_bytes() / cpu_tier::HostMapping::page_bytes();
    std::vector<unsigned char> resident(num_pages);
    ASSERT_EQ(::mincore(memory.bytes().data(), memory.size_bytes(), resident.data()), 0);
    EXPECT_EQ(std::count(resident.begin(), resident.end(), 1),
              static_cast<std::ptrdiff_t>(num_pages));
  }
}

}  // namespace
}  // namespace kvferry::bench
