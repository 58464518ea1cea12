// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

namespace kvferry::bench {

/// A cell: empty, a word, a count, a figure, or yes or no.
using Cell = std::variant<std::monostate, std::string, std::uint64_t, double, bool>;

/// How much a column matters where a table has no room for all of them: lower numbers come first.
/// The columns that tell rows apart, and the figures that most readers want, have the lowest ones.
inline constexpr int kUsualRank = 50;
inline constexpr int kLastRank = 100;

/// One column of every kind of output.
struct Column {
  const char* key;    ///< In JSON and CSV, with the unit.
  const char* title;  ///< In tables.
  const char* unit;   ///< In tables, below the title; may be empty.
  int rank = kUsualRank;
};

/// The results of a subcommand: every row has a cell for each column.
struct Table {
  std::vector<Column> columns;
  std::vector<std::vector<Cell>> rows;
};

/// Reads and writes a column's part of a row.
template <class R>
struct Access {
  Cell (*cell)(const R& row);
  void (*set)(R& row, const Cell& cell);
};

/// A column of rows of type R. A subcommand's columns are one array of these, next to its row type.
template <class R>
struct ColumnOf : Column {
  Access<R> access;
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

inline void set_value(std::string& word, const Cell& cell) {
  const auto* const text = std::get_if<std::string>(&cell);
  word = text == nullptr ? "" : *text;
}
inline void set_value(bool& flag, const Cell& cell) {
  const auto* const value = std::get_if<bool>(&cell);
  flag = value != nullptr && *value;
}
/// Counts and figures.
template <class T>
void set_value(T& number, const Cell& cell) {
  if (const auto* const count = std::get_if<std::uint64_t>(&cell)) {
    number = static_cast<T>(*count);
  } else if (const auto* const figure = std::get_if<double>(&cell)) {
    number = static_cast<T>(*figure);
  }
}
template <class T>
void set_value(std::optional<T>& value, const Cell& cell) {
  value.reset();
  if (!std::holds_alternative<std::monostate>(cell)) set_value(value.emplace(), cell);
}

template <class M>
struct RowOf;
template <class R, class T>
struct RowOf<T R::*> {
  using Type = R;
};

/// The access of a column that shows a data member: `member<&Row::rate>`.
template <auto Field, class R = typename RowOf<decltype(Field)>::Type>
inline constexpr Access<R> member = {[](const R& row) { return cell_of(row.*Field); },
                                     [](R& row, const Cell& cell) { set_value(row.*Field, cell); }};

/// Sets each part of a row from the cell that `cell_at` returns for its column.
template <class R, class CellAt>
void set_cells(std::span<const ColumnOf<R>> columns, R& row, const CellAt& cell_at) {
  for (const ColumnOf<R>& column : columns) column.access.set(row, cell_at(column));
}

/// The cell of a column, in a report that was read.
using CellAt = std::function<Cell(const Column& column)>;

template <class R>
[[nodiscard]] Table table_of(std::span<const ColumnOf<R>> columns, std::span<const R> rows) {
  Table table{{columns.begin(), columns.end()}, {}};
  for (const R& row : rows) {
    std::vector<Cell>& cells = table.rows.emplace_back();
    for (const ColumnOf<R>& column : columns) cells.push_back(column.access.cell(row));
  }
  return table;
}

/// The columns that have a value in at least one row.
[[nodiscard]] Table used_columns(const Table& table);

/// A cell for people: figures with three digits or more, sizes in binary units.
[[nodiscard]] std::string text_of(const Column& column, const Cell& cell);

}  // namespace kvferry::bench
