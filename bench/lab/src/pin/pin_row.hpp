// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "report/table.hpp"

#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace kvferry::bench {

/// One measured row of `pin`: the round with the median total, with all its parts, and the
/// comparison with a bare populate over all rounds. Values that do not apply are empty. Times are
/// seconds of wall clock; GB is 1e9 bytes.
struct PinRow {
  std::string memory;  ///< "own": the benchmark's; "arena": the product's.
  std::string pages;   ///< "normal", "transparent", "huge".
  std::uint32_t threads = 0;
  std::uint64_t piece_bytes = 0;  ///< Bytes of one registration.
  std::uint64_t bytes = 0;
  std::uint32_t rounds = 0;
  std::optional<double> populate_s;
  std::optional<double> register_s;
  double ready_s =
      0;  ///< From nothing to registered, including the mapping and the arena's checks.
  std::optional<double> unregister_s;
  double total_s = 0;  ///< From mapping to unmapping, without the verification.
  std::optional<double> populate_gb_per_s;
  /// A bare populate's seconds over this row's ready_s in the same round; the median of all rounds.
  std::optional<double> percent_of_bare;
  double huge_percent = 0;  ///< Share of the bytes that the kernel really put into huge pages.
  bool verified = false;
};

[[nodiscard]] Table table_of(std::span<const PinRow> rows);
/// The inverse, for one row.
void read_row(PinRow& row, const CellAt& cell_at);

}  // namespace kvferry::bench
