// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "report/table.hpp"

#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace kvferry::bench::trace {

/// One replay of `trace`: a policy at a capacity. The names contain the units; GB is 1e9 bytes.
struct TraceRow {
  std::string traffic;  ///< If it is synthetic.
  std::uint64_t capacity_blocks = 0;
  double capacity_gb = 0;
  std::string policy;
  double loadable_hit_percent = 0;           ///< Of block accesses, in an unbroken prefix.
  std::optional<double> percent_of_optimum;  ///< Of the optimum's loads; unset if it had none.
  double hit_percent = 0;                    ///< Of block accesses, wherever in their request.
  std::uint64_t loaded_blocks = 0;
  double loaded_gb = 0;
  std::uint64_t stored_blocks = 0;
  double stored_gb = 0;
  std::uint64_t evicted_blocks = 0;
  double saved_s = 0;  ///< TimeEstimate.
  double load_s = 0;
  double store_s = 0;
  double replay_s = 0;  ///< Processor time of one replay: the median of the rounds.
  std::optional<double> million_accesses_per_s;  ///< Unset if it took no time.
  bool verified = false;
};

[[nodiscard]] Table table_of(std::span<const TraceRow> rows);
/// The inverse, for one row.
void read_row(TraceRow& row, const CellAt& cell_at);

}  // namespace kvferry::bench::trace
