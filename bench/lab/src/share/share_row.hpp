// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "report/table.hpp"

#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace kvferry::bench {

/// One measured row of `share`. Values that do not apply are empty.
struct ShareRow {
  std::string what;
  std::optional<std::uint64_t> block_bytes;  ///< Bytes that are copied, if engines copy.
  std::uint32_t rounds = 0;
  std::optional<double> steps_per_ms;  ///< Of all working engines together; the median.
  std::optional<double> over_one;      ///< Over one engine alone, round by round; the median.
  std::optional<double> hit_percent;   ///< Of the blocks that were looked up.
  std::optional<double> ms_p50;
  std::optional<double> ms_p99;
  std::optional<double> goal;  ///< The least over_one, or the largest ms_p50.
  bool verified = false;
};

[[nodiscard]] Table table_of(std::span<const ShareRow> rows);
/// The inverse, for one row.
void read_row(ShareRow& row, const CellAt& cell_at);

}  // namespace kvferry::bench
