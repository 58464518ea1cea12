// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "report/table.hpp"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace kvferry::bench {

/// The rates of the link in this run, for the largest copies of the copy engine.
struct LinkPeaks {
  std::uint64_t copy_bytes = 0;
  double h2d_gb_per_s = 0;
  double d2h_gb_per_s = 0;
  double both_gb_per_s = 0;  ///< Both directions together, in the time of the slower one.
  /// The device's own memory, reads and writes together. `copy` and `pipeline` measure it where
  /// the performance model applies.
  std::optional<double> device_gb_per_s = std::nullopt;
};

/// Figures of all pairs of two things, for people: the same as in the rows.
struct Matrix {
  std::string title;
  std::vector<std::string> rows;
  std::vector<std::string> columns;
  std::vector<std::vector<Cell>> cells;  ///< For each row a cell for each column.
};

/// All results of one run of a subcommand.
struct Report {
  std::string program;
  std::string subcommand;
  std::vector<std::string> arguments;
  std::string backend;
  std::uint32_t ordinal = 0;
  std::string device;
  std::string started_at;  ///< UTC, ISO 8601.
  std::uint64_t seed = 0;
  bool quick = false;
  std::uint32_t warm_up_rounds = 0;
  std::optional<LinkPeaks> peaks;
  Table table;
  /// The steps: rows that were measured together, with their number. The numbers add up to the
  /// table's.
  struct Step {
    std::string name;
    std::size_t num_rows = 0;
  };
  std::vector<Step> steps;
  /// Whether the report has all rows.
  bool complete = false;
  /// Shown after the rows.
  std::vector<Matrix> matrices;
  /// Remarks for the reader, in sentences.
  std::vector<std::string> notes;
  /// The first wrong byte or count; empty if everything was verified.
  std::string mismatch;
  /// A text that says what was verified.
  std::string verified = "every byte was verified";
  /// Values that only one subcommand has, by name.
  nlohmann::ordered_json extra = nlohmann::ordered_json::object();
};

/// A remark if this build checks the tier after every call.
inline void note_debug_build([[maybe_unused]] Report& report) {
#ifndef NDEBUG
  report.notes.emplace_back(
      "A debug build, which checks the tier after every call: no figure means anything.");
#endif
}

}  // namespace kvferry::bench
