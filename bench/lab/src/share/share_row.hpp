// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "report/table.hpp"

#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace kvferry::bench {

/// One measured row of `share`. What does not apply is empty.
struct ShareRow {
  std::string what;
  std::optional<std::uint64_t> block_bytes;  ///< That are copied, by engines that copy.
  std::uint32_t rounds = 0;
  std::optional<double> steps_per_ms;  ///< Of all engines that work, together; the median.
  std::optional<double> over_one;      ///< Of one engine alone, round by round; the median.
  std::optional<double> hit_percent;   ///< Of the blocks that were looked up.
  std::optional<double> ms_p50;
  std::optional<double> ms_p99;
  std::optional<double> goal;  ///< Of over_one at least, of ms_p50 at most.
  bool verified = false;
};

[[nodiscard]] Table table_of(std::span<const ShareRow> rows);
/// The inverse, of one row.
void read_row(ShareRow& row, const CellAt& cell_at);

}  // namespace kvferry::bench
