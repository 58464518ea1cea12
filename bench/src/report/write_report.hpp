// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "report/report.hpp"

#include <iosfwd>
#include <string>

namespace kvferry::bench {

/// The version of the JSON's form: a number that grows when a reader would have to change.
inline constexpr int kReportSchema = 1;

/// A table for a terminal.
void write_table(const Report& report, std::ostream& out);
/// The same as Markdown.
void write_markdown(const Report& report, std::ostream& out);
/// One row of keys, one line per row; cells without a value are empty.
void write_csv(const Report& report, std::ostream& out);
/// {"schema", "program", "version", "subcommand", "arguments", "backend", "ordinal", "device",
/// "started_at", "seed", "quick", "warm_up_rounds", "verified", "mismatch", "peaks", "notes",
/// "rows": [{every column's key: value or null}]} and what the subcommand adds.
void write_json(const Report& report, std::ostream& out);

/// Writes with `write` to the file. Throws ResourceError if that fails.
void write_file(const Report& report, const std::string& file,
                void (*write)(const Report&, std::ostream&));

}  // namespace kvferry::bench
