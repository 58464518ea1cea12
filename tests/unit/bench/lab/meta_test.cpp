// SPDX-License-Identifier: Apache-2.0
// What `meta` says fits itself; no time is asserted.
#include "meta/bare_table.hpp"
#include "meta/meta_rows.hpp"
#include "program.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <map>
#include <set>
#include <string>

namespace kvferry::bench {
namespace {

using nlohmann::json;

const std::string kAllOperations =
    "lookup,lookup-absent,prefix,store,lease,reserve-free,touch,offer-absent,offer-held";

std::vector<std::string> tiny_meta(const std::vector<std::string>& more) {
  return joined({"meta", "--quick", "--rounds", "4", "--resident", "300", "--batch", "7,300",
                 "--prefix", "40", "--sweep", "4KiB"},
                more);
}

TEST(Meta, RowsOfEveryOperationAreVerifiedAndFitTheirBareTable) {
  const auto [run, report] = run_for_report(tiny_meta({"--op", kAllOperations}));
  ASSERT_EQ(run.exit_code, 0) << run.err;
  std::set<std::string> operations;
  // 13 rows of nine operations.
  EXPECT_EQ(report.at("rows").size(), 13U * 2 * 2);
  for (const json& row : report.at("rows")) {
    operations.insert(row.at("operation"));
    EXPECT_EQ(row.at("verified"), true) << row;
    EXPECT_EQ(row.at("policy"), "lru/always");
    EXPECT_EQ(row.at("rounds"), 4);
    const double p50 = row.at("ns_per_block_p50");
    EXPECT_GT(p50, 0) << row;
    EXPECT_LE(p50, row.at("ns_per_block_p99").get<double>()) << row;
    EXPECT_EQ(row.at("bare_ns_per_block").is_null(), row.at("ratio").is_null()) << row;
    if (row.at("ratio").is_null()) continue;
    const double ratio = p50 / row.at("bare_ns_per_block").get<double>();
    EXPECT_NEAR(row.at("ratio").get<double>(), ratio, 1e-6 * ratio);
  }
  EXPECT_EQ(operations.size(), 13U);
}

TEST(Meta, GoalsAreThoseOfHalfAMillionBlocksAndOfTenMillion) {
  MetaShape shape;
  shape.num_resident = shape.batch = 8;
  const auto lookup = make_meta_operation("lookup", shape);
  const MetaPart& part = lookup->parts().front();
  EXPECT_EQ(goal_ns(part, 499'999, Temperature::kWarm), std::nullopt);
  EXPECT_EQ(goal_ns(part, 500'000, Temperature::kWarm), 30);
  EXPECT_EQ(goal_ns(part, 9'999'999, Temperature::kCold), 60);
  EXPECT_EQ(goal_ns(part, 10'000'000, Temperature::kWarm), 100);
  EXPECT_EQ(goal_ns(part, 10'000'000, Temperature::kCold), 100);
  const auto lease = make_meta_operation("lease", shape);
  EXPECT_EQ(goal_ns(lease->parts().front(), 10'000'000, Temperature::kCold), std::nullopt);
}

TEST(Meta, AStoreCostsAtLeastItsReservation) {
  const auto [run, report] = run_for_report(tiny_meta({"--op", "store", "--caches", "cold"}));
  ASSERT_EQ(run.exit_code, 0) << run.err;
  std::map<std::string, double> cost;
  for (const json& row : report.at("rows")) {
    if (row.at("batch") == 300) cost[row.at("operation")] = row.at("ns_per_block_p50");
  }
  ASSERT_EQ(cost.size(), 3U);
  EXPECT_GE(cost.at("reserve + commit"), cost.at("reserve, evicting"));
  EXPECT_GE(cost.at("reserve + commit"), cost.at("commit"));
}

TEST(Meta, EveryPolicyGivesTheRightAnswers) {
  for (const char* eviction : {"lru", "arc", "adaptive"}) {
    for (const char* admission : {"always", "second_offer", "adaptive"}) {
      const ProgramRun run = run_program(
          tiny_meta({"--op", kAllOperations, "--eviction", eviction, "--admission", admission}));
      EXPECT_EQ(run.exit_code, 0) << eviction << "/" << admission << run.out << run.err;
    }
  }
}

TEST(Meta, AWrongAnswerIsAMismatch) {
  for (const char* operation : {"lookup", "store"}) {
    const auto [run, report] =
        run_for_report(tiny_meta({"--op", operation, "--corrupt-round", "2"}));
    EXPECT_EQ(run.exit_code, 1) << run.err;
    EXPECT_NE(run.out.find("DATA MISMATCH: round 2"), std::string::npos) << run.out;
    EXPECT_EQ(report.at("rows").at(0).at("verified"), false);
    EXPECT_EQ(report.at("rows").back().at("verified"), true);
  }
}

TEST(Meta, BadUsageIsTwoWithAHint) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> bad = {
      {{"--op", "guess"}, "lookup-absent"},
      {{"--caches", "tepid"}, "warm or cold"},
      {{"--eviction", "fifo"}, "adaptive, lru, arc"},
      {{"--admission", "never"}, "second_offer"},
      {{"--resident", "10", "--batch", "11"}, "--resident 10"},
      {{"--sweep", "all"}, "not a size"},
      {{"--device", "cuda"}, "measures no device"},
  };
  for (const auto& [arguments, hint] : bad) {
    const ProgramRun run = run_program(joined({"meta"}, arguments));
    EXPECT_EQ(run.exit_code, 2) << hint;
    EXPECT_NE(run.err.find(hint), std::string::npos) << run.err;
    EXPECT_NE(run.err.find("--help"), std::string::npos) << run.err;
  }
}

TEST(BareTable, FindsWhatWasInsertedAndNotErased) {
  const auto key = [](std::uint32_t number) {
    std::array<std::byte, 4> hash;
    std::memcpy(hash.data(), &number, sizeof number);
    return cpu_tier::BlockKey::make(hash, GroupId(0));
  };
  std::vector<cpu_tier::BlockKey> keys;
  std::vector<std::uint32_t> values;
  for (std::uint32_t i = 0; i < 1000; ++i) {
    keys.push_back(key(i));
    values.push_back(i);
  }
  BareTable table(1000);
  table.insert(keys, values);
  table.erase(std::span(keys).first(500));
  std::vector<std::uint32_t> found(1000);
  table.find(keys, found);
  for (std::uint32_t i = 0; i < 1000; ++i) {
    EXPECT_EQ(found[i], i < 500 ? BareTable::kAbsent : i);
  }
}

}  // namespace
}  // namespace kvferry::bench
