// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "report/report.hpp"

#include <iosfwd>
#include <string>

namespace kvferry::bench {

/// The version of the JSON's form: a number that grows when a reader would have to change.
inline constexpr int kReportSchema = 1;

/// A table for a terminal, in parts: what stands above it, and below it.
void write_heading(const Report& report, std::ostream& out);
void write_verdict(const Report& report, std::ostream& out);
/// The titles of these columns, and a row's cells below them. Columns have widths of their own, so
/// that rows can be written as they come.
void write_titles(const Table& table, std::ostream& out);
void write_row(const Table& table, std::size_t row, std::ostream& out);
/// The same as Markdown.
void write_markdown(const Report& report, std::ostream& out);
/// One row of keys, one line per row; cells without a value are empty.
void write_csv(const Report& report, std::ostream& out);
/// {"schema", "program", "version", "subcommand", "arguments", "backend", "ordinal", "device",
/// "started_at", "seed", "quick", "warm_up_rounds", "complete", "steps", "verified", "mismatch",
/// "peaks", "notes", "rows": [{every column's key: value or null}]} and what the subcommand adds.
void write_json(const Report& report, std::ostream& out);

/// Writes with `write` to the file, whole or not at all: a reader finds the old one or the new one.
/// What is no ordinary file (/dev/stdout) is written as it is. Throws ResourceError if that fails.
void write_file(const Report& report, const std::string& file,
                void (*write)(const Report&, std::ostream&));

}  // namespace kvferry::bench
