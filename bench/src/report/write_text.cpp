// SPDX-License-Identifier: Apache-2.0
// Reports for people: for the terminal, and as Markdown.
#include "report/write_report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <ostream>
#include <string_view>

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

// Wide enough for most figures and words. A longer cell shifts the rest of its row.
constexpr std::size_t kWidth = 8;

std::size_t width_of(const Column& column) {
  return std::max(
      {kWidth, std::string_view(column.title).size(), std::string_view(column.unit).size()});
}

}  // namespace

void write_heading(const Report& report, std::ostream& out) {
  out << report.program << ' ' << report.subcommand << '\n';
  for (const std::string& line : heading(report)) out << line << '\n';
}

void write_titles(const Table& table, std::ostream& out) {
  out << '\n';
  for (const Column& column : table.columns) {
    out << fmt::format("{:>{}}  ", column.title, width_of(column));
  }
  out << '\n';
  for (const Column& column : table.columns) {
    out << fmt::format("{:>{}}  ", column.unit, width_of(column));
  }
  out << '\n';
}

void write_row(const Table& table, std::size_t row, std::ostream& out) {
  for (std::size_t i = 0; i < table.columns.size(); ++i) {
    const Column& column = table.columns[i];
    out << fmt::format("{:>{}}  ", text_of(column, table.rows[row][i]), width_of(column));
  }
  out << '\n';
}

void write_verdict(const Report& report, std::ostream& out) {
  out << '\n';
  for (const std::string& note : report.notes) out << note << '\n';
  out << verdict(report) << '\n';
}

void write_markdown(const Report& report, std::ostream& out) {
  out << "## " << report.program << ' ' << report.subcommand << "\n\n    " << report.program;
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
