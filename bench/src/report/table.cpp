// SPDX-License-Identifier: Apache-2.0
#include "report/table.hpp"

#include "options/sizes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>

namespace kvferry::bench {
namespace {

std::string figure(double value) {
  const double size = std::abs(value);
  return fmt::format("{:.{}f}", value, size >= 1000 ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : 3);
}

}  // namespace

Table used_columns(const Table& table) {
  Table used{{}, std::vector<std::vector<Cell>>(table.rows.size())};
  for (std::size_t i = 0; i < table.columns.size(); ++i) {
    const auto says = [i](const auto& row) {
      return !std::holds_alternative<std::monostate>(row[i]);
    };
    if (std::none_of(table.rows.begin(), table.rows.end(), says)) continue;
    used.columns.push_back(table.columns[i]);
    for (std::size_t r = 0; r < table.rows.size(); ++r) used.rows[r].push_back(table.rows[r][i]);
  }
  return used;
}

std::string text_of(const Column& column, const Cell& cell) {
  if (const auto* word = std::get_if<std::string>(&cell)) return *word;
  if (const auto* count = std::get_if<std::uint64_t>(&cell)) {
    return std::string_view(column.unit) == "bytes" ? bytes_text(*count)
                                                    : fmt::format("{}", *count);
  }
  if (const auto* value = std::get_if<double>(&cell)) return figure(*value);
  if (const auto* flag = std::get_if<bool>(&cell)) return *flag ? "yes" : "NO";
  return "-";
}

}  // namespace kvferry::bench
