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

// Wide enough for most figures and words.
constexpr std::size_t kUsualCellWidth = 7;

/// One line: each word at the right side of its column.
class Line {
 public:
  void add(std::string_view word, std::size_t width) {
    text_ += fmt::format("{:{}}{:>{}}", "", text_.empty() ? 0 : kColumnGap, word, width);
  }
  /// Writes the line without spaces at its end.
  void write(std::ostream& out) const {
    out << text_.substr(0, text_.find_last_not_of(' ') + 1) << '\n';
  }

 private:
  std::string text_;
};

void write_matrix(const Matrix& matrix, std::ostream& out) {
  std::size_t first = 0;
  for (const std::string& row : matrix.rows) first = std::max(first, row.size());
  const auto width = [&](std::size_t column) {
    return std::max(kUsualCellWidth, matrix.columns[column].size());
  };
  out << '\n' << matrix.title << '\n';
  Line titles;
  titles.add("", first);
  for (std::size_t i = 0; i < matrix.columns.size(); ++i) titles.add(matrix.columns[i], width(i));
  titles.write(out);
  for (std::size_t row = 0; row < matrix.rows.size(); ++row) {
    Line line;
    line.add(matrix.rows[row], first);
    for (std::size_t i = 0; i < matrix.columns.size(); ++i) {
      line.add(text_of({}, matrix.cells[row][i]), width(i));
    }
    line.write(out);
  }
}

}  // namespace

void write_heading(const Report& report, std::ostream& out) {
  out << report.program << ' ' << report.subcommand << '\n';
  for (const std::string& line : heading(report)) out << line << '\n';
}

std::size_t least_width_of(const Column& column) {
  return std::max({kUsualCellWidth, std::string_view(column.title).size(),
                   std::string_view(column.unit).size()});
}

void write_titles(const Table& table, std::span<const std::size_t> widths, std::ostream& out) {
  out << '\n';
  for (const char* Column::*const part : {&Column::title, &Column::unit}) {
    Line line;
    for (std::size_t i = 0; i < table.columns.size(); ++i) {
      line.add(table.columns[i].*part, widths[i]);
    }
    line.write(out);
  }
}

void write_row(const Table& table, std::size_t row, std::span<const std::size_t> widths,
               std::ostream& out) {
  Line line;
  for (std::size_t i = 0; i < table.columns.size(); ++i) {
    line.add(text_of(table.columns[i], table.rows[row][i]), widths[i]);
  }
  line.write(out);
}

void write_verdict(const Report& report, std::ostream& out) {
  for (const Matrix& matrix : report.matrices) write_matrix(matrix, out);
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
  for (const Matrix& matrix : report.matrices) {
    out << "\n```text";
    write_matrix(matrix, out);
    out << "```\n";
  }
  out << '\n';
  for (const std::string& note : report.notes) out << note << "\n\n";
  out << verdict(report) << '\n';
}

}  // namespace kvferry::bench
