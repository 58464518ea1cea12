// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "options/common_options.hpp"
#include "report/report.hpp"

#include <cstddef>
#include <iosfwd>
#include <map>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace kvferry::bench {

/// The user wants the measurement to end. The rows so far are reported.
class Stopped : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Requests the end after the current step; SIGINT and SIGTERM do this. Async-signal-safe.
void request_stop(int signal_number) noexcept;
void forget_stop() noexcept;

/// Takes a report's rows as they are measured, and writes every form of the report after each step,
/// so that files are complete at any time. With --resume it returns the steps of an earlier run
/// instead of measuring them. Used by one thread at a time.
class RowStream {
 public:
  /// `report` says what is measured. With --resume it gets the contents of its --json file. Throws
  /// ConfigError if that file belongs to another measurement, and ResourceError if a file cannot be
  /// written. All arguments outlive the object.
  RowStream(Report& report, const CommonOptions& options, std::ostream& out);

  /// Returns the rows of a step: measured by `measure()`, or from the resumed report. A step's name
  /// is the same in every run with the same options. Throws Stopped before a measurement if the end
  /// was requested, and everything that `measure` throws.
  template <class R, class Measure>
  std::vector<R> step(std::string name, const Measure& measure) {
    name = once(std::move(name));
    std::vector<R> rows;
    if (has(name)) {
      for (const nlohmann::json& row : taken_.at(name)) {
        read_row(rows.emplace_back(),
                 [&row](const Column& column) { return cell_at(row, column); });
      }
    } else {
      throw_if_stopped();
      rows = measure();
    }
    add(name, table_of(std::span<const R>(rows)));
    return rows;
  }
  /// The peaks to which percentages refer: those of a resumed report, else those of `measure()`.
  template <class Measure>
  const LinkPeaks& peaks(const Measure& measure) {
    if (!report_.peaks) {
      throw_if_stopped();
      report_.peaks = measure();
      begin();
    }
    return *report_.peaks;
  }
  /// From now on rows appear on `out` only at the end, because replace() completes them. Files
  /// still get them step by step.
  void show_at_end() { shows_at_end_ = true; }
  /// Replaces the rows by complete ones, with values that are known only at the end. Only after
  /// show_at_end().
  void replace(Table table) { report_.table = std::move(table); }
  /// Writes the end: notes, the verdict, and the files, marked as complete or not.
  void finish();

 private:
  [[nodiscard]] static Cell cell_at(const nlohmann::json& row, const Column& column);
  [[nodiscard]] bool has(const std::string& name) const { return taken_.count(name) != 0; }
  /// Adds a number to the name of a second step with the same name.
  [[nodiscard]] std::string once(std::string name);
  static void throw_if_stopped();
  void begin();
  void add(const std::string& name, Table table);
  /// Writes the rows from this one on, with new titles if they need other columns or wider ones.
  void show(std::size_t first_row);
  /// Takes note of the values of these rows: which columns have any, and how wide they are.
  void measure_cells(std::size_t first_row);
  /// The columns that have room: by rank, in the order of the table.
  [[nodiscard]] std::vector<std::size_t> fitting_columns() const;
  void write_files() const;
  void resume();

  Report& report_;
  const CommonOptions& options_;
  std::ostream& out_;
  bool begun_ = false;
  bool shows_at_end_ = false;
  std::map<std::string, nlohmann::json> taken_;
  std::map<std::string, std::size_t> names_;
  /// The room for a row, in characters.
  std::size_t room_;
  /// For each column: the width of its widest cell; 0 if it has had no value.
  std::vector<std::size_t> widths_;
  /// The columns below the last titles, and their widths.
  std::vector<std::size_t> shown_columns_;
  std::vector<std::size_t> shown_widths_;
};

}  // namespace kvferry::bench
