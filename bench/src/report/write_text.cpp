// SPDX-License-Identifier: Apache-2.0
// For people: terminal and Markdown.
#include "report/write_report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <ostream>

namespace kvferry::bench {
namespace {

std::vector<std::string> heading(const Report& report) {
  std::vector<std::string> lines;
  lines.push_back(fmt::format("{}:{}: {}", report.backend, report.ordinal, report.device));
  if (report.peaks) {
    lines.push_back(fmt::format(
        "link peak (copy engine, pinned, {:.3g} MB a copy): h2d {:.2f} GB/s, d2h {:.2f} GB/s, "
        "both {:.2f} GB/s",
        static_cast<double>(report.peaks->copy_bytes) / 1e6, report.peaks->h2d_gb_per_s,
        report.peaks->d2h_gb_per_s, report.peaks->both_gb_per_s));
  }
  if (report.peaks && report.peaks->device_gb_per_s) {
    lines.push_back(fmt::format("device memory (triad, reads and writes): {:.2f} GB/s",
                                *report.peaks->device_gb_per_s));
  }
  lines.push_back(fmt::format("seed {}, {} warm-up rounds before the measured ones; GB = 1e9 bytes",
                              report.seed, report.warm_up_rounds));
  return lines;
}

std::string verdict(const Report& report) {
  return report.mismatch.empty() ? report.verified : "DATA MISMATCH: " + report.mismatch;
}

using Line = std::vector<std::string>;

/// Titles, units and the rows' cells.
std::vector<Line> lines_of(const Table& table) {
  std::vector<Line> lines(2);
  for (const Column& column : table.columns) {
    lines[0].emplace_back(column.title);
    lines[1].emplace_back(column.unit);
  }
  for (const auto& row : table.rows) {
    Line& line = lines.emplace_back();
    for (std::size_t i = 0; i < row.size(); ++i) {
      line.push_back(text_of(table.columns[i], row[i]));
    }
  }
  return lines;
}

}  // namespace

void write_table(const Report& report, std::ostream& out) {
  out << "kvferry-bench " << report.subcommand << '\n';
  for (const std::string& line : heading(report)) out << line << '\n';
  out << '\n';
  const std::vector<Line> lines = lines_of(used_columns(report.table));
  for (const Line& line : lines) {
    for (std::size_t i = 0; i < line.size(); ++i) {
      std::size_t width = 0;
      for (const Line& other : lines) width = std::max(width, other[i].size());
      out << fmt::format("{:>{}}{}", line[i], width, i + 1 == line.size() ? "\n" : "  ");
    }
  }
  out << '\n';
  for (const std::string& note : report.notes) out << note << '\n';
  out << verdict(report) << '\n';
}

void write_markdown(const Report& report, std::ostream& out) {
  out << "## kvferry-bench " << report.subcommand << "\n\n    kvferry-bench";
  for (const std::string& argument : report.arguments) out << ' ' << argument;
  out << "\n\n";
  for (const std::string& line : heading(report)) out << "- " << line << '\n';
  out << "- " << report.started_at << "\n\n";
  const Table used = used_columns(report.table);
  out << '|';
  for (const Column& column : used.columns) {
    out << ' ' << column.title << (*column.unit == '\0' ? "" : ", ") << column.unit << " |";
  }
  out << "\n|";
  for (std::size_t i = 0; i < used.columns.size(); ++i) out << "---|";
  out << '\n';
  for (const auto& row : used.rows) {
    out << '|';
    for (std::size_t i = 0; i < row.size(); ++i) {
      out << ' ' << text_of(used.columns[i], row[i]) << " |";
    }
    out << '\n';
  }
  out << '\n';
  for (const std::string& note : report.notes) out << note << "\n\n";
  out << verdict(report) << '\n';
}

}  // namespace kvferry::bench
