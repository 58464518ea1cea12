// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

namespace kvferry::bench {

/// Empty, a word, a count, a figure, a yes or no.
using Cell = std::variant<std::monostate, std::string, std::uint64_t, double, bool>;

/// One column of every kind of output.
struct Column {
  const char* key;    ///< In JSON and CSV, with the unit.
  const char* title;  ///< In tables.
  const char* unit;   ///< In tables, below the title; may be empty.
};

/// What a subcommand measured: every row has a cell for each column.
struct Table {
  std::vector<Column> columns;
  std::vector<std::vector<Cell>> rows;
};

/// A column of rows of type R. A subcommand's columns are one array of these, beside its row type.
template <class R>
struct ColumnOf : Column {
  Cell (*cell)(const R& row);
};

[[nodiscard]] inline Cell cell_of(const std::string& word) {
  return word.empty() ? Cell() : Cell(word);
}
[[nodiscard]] inline Cell cell_of(std::uint64_t count) { return count; }
[[nodiscard]] inline Cell cell_of(std::uint32_t count) { return std::uint64_t{count}; }
[[nodiscard]] inline Cell cell_of(double figure) { return figure; }
[[nodiscard]] inline Cell cell_of(bool flag) { return flag; }
template <class T>
[[nodiscard]] Cell cell_of(const std::optional<T>& value) {
  return value ? Cell(*value) : Cell();
}

/// The `cell` of a column that shows a data member: `&member<&Row::rate>`.
template <auto kMember, class R>
[[nodiscard]] Cell member(const R& row) {
  return cell_of(row.*kMember);
}

template <class R>
[[nodiscard]] Table table_of(std::span<const ColumnOf<R>> columns, std::span<const R> rows) {
  Table table{{columns.begin(), columns.end()}, {}};
  for (const R& row : rows) {
    std::vector<Cell>& cells = table.rows.emplace_back();
    for (const ColumnOf<R>& column : columns) cells.push_back(column.cell(row));
  }
  return table;
}

/// The columns that say something about at least one row.
[[nodiscard]] Table used_columns(const Table& table);

/// A cell for people: figures with three digits or more, sizes in binary units.
[[nodiscard]] std::string text_of(const Column& column, const Cell& cell);

}  // namespace kvferry::bench
