// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "report/table.hpp"

#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace kvferry::bench {

/// The expectation for one row of `copy` or `pipeline`. The columns are those of TransferRow.
struct ExpectRow {
  std::string direction;
  std::string path;
  std::string placement;
  std::uint64_t fragment_bytes = 0;
  std::uint64_t count = 0;
  std::uint64_t bytes = 0;  ///< Bytes of one transfer or plan.
  std::optional<std::uint64_t> piece_bytes;
  std::optional<double> limit_gb_per_s;
  std::string co_run;
  double expected_gb_per_s = 0;
  double percent_of_peak = 0;  ///< Of the profile's peak of the same direction.
  std::optional<double> expected_slow_down_percent;
  std::string bound_by;
};

[[nodiscard]] Table table_of(std::span<const ExpectRow> rows);
/// The inverse, for one row.
void read_row(ExpectRow& row, const CellAt& cell_at);

}  // namespace kvferry::bench
