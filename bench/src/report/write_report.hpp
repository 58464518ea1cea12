// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "report/report.hpp"

#include <iosfwd>
#include <span>
#include <string>

namespace kvferry::bench {

/// The version of the JSON's form. It grows when readers have to change.
inline constexpr int kReportSchema = 1;

/// The parts of a table for a terminal: the text above it, and the text below it.
void write_heading(const Report& report, std::ostream& out);
void write_verdict(const Report& report, std::ostream& out);
/// The spaces between two columns.
inline constexpr std::size_t kColumnGap = 2;
/// The width of a column for its title, and for figures as they usually are.
[[nodiscard]] std::size_t least_width_of(const Column& column);
/// The titles of these columns, and a row's cells below them; `widths` has one number for each.
void write_titles(const Table& table, std::span<const std::size_t> widths, std::ostream& out);
void write_row(const Table& table, std::size_t row, std::span<const std::size_t> widths,
               std::ostream& out);
/// The same as Markdown.
void write_markdown(const Report& report, std::ostream& out);
/// CSV: one line of keys, then one line for each row. Cells without a value are empty.
void write_csv(const Report& report, std::ostream& out);
/// {"schema", "program", "version", "subcommand", "arguments", "backend", "ordinal", "device",
/// "started_at", "seed", "quick", "warm_up_rounds", "complete", "steps", "verified", "mismatch",
/// "peaks", "notes", "rows": [{every column's key: value or null}]}, and what the subcommand adds.
void write_json(const Report& report, std::ostream& out);

/// Writes the file with `write`, as a whole or not at all: a reader finds the old file or the new
/// one. If it is not a regular file (/dev/stdout), it is written directly. Throws ResourceError if
/// that fails.
void write_file(const Report& report, const std::string& file,
                void (*write)(const Report&, std::ostream&));

}  // namespace kvferry::bench
