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

/// The user wants the measurement to end: what is there is reported.
class Stopped : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Asks for the end after the step that runs now; what SIGINT and SIGTERM do. Async-signal-safe.
void request_stop(int signal_number) noexcept;
void forget_stop() noexcept;

/// Takes a report's rows as they are measured and writes every form of it after each step, so that
/// a file is whole at every moment. With --resume it gives the steps of an earlier run back instead
/// of measuring them. One thread at a time.
class RowStream {
 public:
  /// `report` says what is measured; with --resume it gets what its --json file has. Throws
  /// ConfigError if that file is of another measurement, and ResourceError if a file cannot be
  /// written. All arguments outlive it.
  RowStream(Report& report, const CommonOptions& options, std::ostream& out);

  /// The rows of a step: measured by `measure()`, or those of the resumed report. A step's name is
  /// the same in every run with the same options. Throws Stopped before a measurement if the end
  /// was asked for, and what `measure` throws.
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
  /// Peaks that percentages refer to: a resumed report's, or else those of `measure()`.
  template <class Measure>
  const LinkPeaks& peaks(const Measure& measure) {
    if (!report_.peaks) {
      throw_if_stopped();
      report_.peaks = measure();
      begin();
    }
    return *report_.peaks;
  }
  /// From now on rows appear on `out` at the end only, because replace() completes them. Files get
  /// them step by step all the same.
  void show_at_end() { shows_at_end_ = true; }
  /// The rows with what could only be said at the end. Only after show_at_end().
  void replace(Table table) { report_.table = std::move(table); }
  /// Writes the end: notes, the verdict, and files that are complete or not.
  void finish();

 private:
  [[nodiscard]] static Cell cell_at(const nlohmann::json& row, const Column& column);
  [[nodiscard]] bool has(const std::string& name) const { return taken_.count(name) != 0; }
  /// A second step of the same name gets a number.
  [[nodiscard]] std::string once(std::string name);
  static void throw_if_stopped();
  void begin();
  void add(const std::string& name, Table table);
  void show(std::size_t first_row);
  void write_files() const;
  void resume();

  Report& report_;
  const CommonOptions& options_;
  std::ostream& out_;
  bool begun_ = false;
  bool shows_at_end_ = false;
  std::map<std::string, nlohmann::json> taken_;
  std::map<std::string, std::size_t> names_;
  std::vector<std::size_t> shown_columns_;
};

}  // namespace kvferry::bench
