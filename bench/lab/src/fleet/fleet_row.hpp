// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "report/table.hpp"

#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace kvferry::bench::fleet {

/// One simulation of `fleet`. The names contain the units; GB is 1e9 bytes. Percentages refer to
/// the tokens of all prompts, and bytes are sums over all nodes.
struct FleetRow {
  std::string traffic;  ///< If it is synthetic.
  std::uint32_t nodes = 0;
  std::uint64_t capacity_blocks = 0;  ///< Of each node's tier.
  double capacity_gb = 0;             ///< Of each node's tier.
  std::string routing;
  std::string far_tier;
  double loaded_percent = 0;  ///< Loaded from either tier.
  double near_percent = 0;    ///< Loaded from the node's own tier.
  double far_percent = 0;     ///< Loaded from the far tier.
  double ttft_mean_s = 0;
  double ttft_p99_s = 0;
  double busiest_over_mean = 0;  ///< Tokens computed by the busiest engine, over the mean.
  double near_loaded_gb = 0;
  double near_stored_gb = 0;
  double far_loaded_gb = 0;
  double far_stored_gb = 0;
  std::optional<double> far_capacity_gb;  ///< Of the whole far tier, if there is one.
  double simulation_s = 0;                ///< Processor time.
  bool verified = false;
};

[[nodiscard]] Table table_of(std::span<const FleetRow> rows);
/// The inverse, for one row.
void read_row(FleetRow& row, const CellAt& cell_at);

}  // namespace kvferry::bench::fleet
