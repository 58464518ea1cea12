// SPDX-License-Identifier: Apache-2.0
// What a reader sees of a report: the columns that fit, as wide as they must be; matrices; CSV.
#include "options/closest.hpp"
#include "report/link_matrix.hpp"
#include "report/row_stream.hpp"
#include "report/transfer_row.hpp"
#include "report/write_report.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <sstream>

namespace kvferry::bench {
namespace {

using Lines = std::vector<std::string>;

TransferRow row_of(const std::string& direction, const std::string& path, double rate) {
  TransferRow row;
  row.direction = direction;
  row.path = path;
  row.memory = "pinned";
  row.placement = "shuffled";
  row.fragment_bytes = 4096;
  row.count = 512;
  row.bytes = 4096 * 512;
  row.descriptors = 512;
  row.rounds = 10;
  row.submit_us_mean = 1.5;
  row.transfer_us_min = 30.5;
  row.transfer_us_p50 = 40.25;
  row.transfer_us_p99 = 50.125;
  row.gb_per_s = rate;
  row.percent_of_peak = 99.5;
  row.verified = true;
  return row;
}

/// The table of these rows, each in a step of its own: the lines up to the first empty one after
/// it.
Lines shown(const std::vector<TransferRow>& rows, const char* width, bool wide = false) {
  ::setenv("COLUMNS", width, 1);
  Report report;
  CommonOptions options;
  options.wide = wide;
  std::ostringstream out;
  RowStream stream(report, options, out);
  for (const TransferRow& row : rows) {
    static_cast<void>(
        stream.step<TransferRow>(row.path, [&] { return std::vector<TransferRow>{row}; }));
  }
  ::unsetenv("COLUMNS");
  Lines lines;
  std::istringstream text(out.str());
  bool in_table = false;
  for (std::string line; std::getline(text, line);) {
    in_table = in_table || line.find("direction") != std::string::npos;
    if (in_table) lines.push_back(line);
  }
  return lines;
}

TEST(ShownColumns, FitTheWidthByRank) {
  const std::vector<TransferRow> rows = {row_of("h2d", "per_run", 26.4)};
  EXPECT_EQ(shown(rows, "40"),
            (Lines{"direction     path     rate  of peak", "                       GB/s        %",
                   "      h2d  per_run     26.4     99.5"}));
  EXPECT_EQ(shown(rows, "80"),
            (Lines{"direction     path   memory  fragment     rate  of peak      p50      p99",
                   "                                bytes     GB/s        %       us       us",
                   "      h2d  per_run   pinned     4 KiB     26.4     99.5     40.2     50.1"}));
  for (const std::string& line : shown(rows, "100")) EXPECT_LE(line.size(), 100U) << line;
  const std::string all = shown(rows, "100", true).front();
  for (const char* title : {"descriptors", "submit mean", "placement", "rounds", "verified"}) {
    EXPECT_NE(all.find(title), std::string::npos) << title;
  }
}

TEST(ShownColumns, GetNewTitlesForAWiderCell) {
  const Lines lines =
      shown({row_of("h2d", "batch", 26.4), row_of("h2d", "pipeline:per_run", 12.5)}, "40");
  EXPECT_EQ(
      lines,
      (Lines{"direction     path     rate  of peak", "                       GB/s        %",
             "      h2d    batch     26.4     99.5", "", "direction              path     rate",
             "                                GB/s", "      h2d  pipeline:per_run     12.5"}));
}

TEST(Matrices, HaveARowForEachNodeAndAColumnForEachDevice) {
  std::vector<TransferRow> rows;
  for (std::uint64_t device = 0; device < 2; ++device) {
    for (std::uint64_t node = 0; node < 2; ++node) {
      for (const char* direction : {"h2d", "d2h"}) {
        TransferRow row = row_of(direction, "copy_engine", 10.0 * static_cast<double>(device) + 5);
        row.device = device;
        row.numa_node = node;
        rows.push_back(row);
        row.path = "memcpy";
        rows.push_back(row);
      }
    }
  }
  Report report;
  report.matrices = link_matrices(rows);
  std::ostringstream out;
  write_verdict(report, out);
  EXPECT_TRUE(
      out.str().starts_with("\nh2d, pinned memory, GB/s\n"
                            "        device 0  device 1\n"
                            "node 0      5.00      15.0\n"
                            "node 1      5.00      15.0\n"
                            "\nd2h, pinned memory, GB/s\n"))
      << out.str();
  rows.resize(2);
  EXPECT_TRUE(link_matrices(rows).empty()) << "one node and one device: the row says it";
}

TEST(Csv, QuotesCellsWithSeparators) {
  Report report;
  report.table.columns = {{"what", "what", ""}, {"count", "count", ""}};
  report.table.rows = {{std::string("lookup, all hits"), std::uint64_t{3}},
                       {std::string("a \"hot\" tier"), Cell()},
                       {std::string("plain"), 2.5}};
  std::ostringstream out;
  write_csv(report, out);
  EXPECT_EQ(out.str(), "what,count\n\"lookup, all hits\",3\n\"a \"\"hot\"\" tier\",\nplain,2.5\n");
}

TEST(Closest, IsTheWordThatWasMeant) {
  const std::vector<std::string> known = {"link", "copy", "pipeline", "expect"};
  EXPECT_EQ(closest("lnik", known), "link");
  EXPECT_EQ(closest("pipline", known), "pipeline");
  EXPECT_EQ(closest("coppy", known), "copy");
  EXPECT_EQ(closest("meta", known), "");
  EXPECT_EQ(closest("", known), "");
}

}  // namespace
}  // namespace kvferry::bench
