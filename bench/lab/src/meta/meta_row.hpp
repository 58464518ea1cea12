// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "report/table.hpp"

#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace kvferry::bench {

/// One measured row of `meta`. Values that do not apply are empty. Times are nanoseconds of one
/// thread for one block.
struct MetaRow {
  std::string operation;
  std::string tier;            ///< "private" or "shared".
  std::string temperature;     ///< "warm" or "cold".
  std::uint32_t resident = 0;  ///< Readable blocks in the tier.
  std::uint32_t batch = 0;     ///< Blocks of one call.
  std::string policy;          ///< "eviction/admission".
  std::uint32_t rounds = 0;
  double ns_p50 = 0;
  double ns_p99 = 0;
  std::optional<double> bare_ns;  ///< The median of the bare table, for what it can do.
  std::optional<double> ratio;    ///< ns_p50 over bare_ns.
  std::optional<double> goal_ns;
  bool verified = false;
};

[[nodiscard]] Table table_of(std::span<const MetaRow> rows);
/// The inverse, for one row.
void read_row(MetaRow& row, const CellAt& cell_at);

}  // namespace kvferry::bench
