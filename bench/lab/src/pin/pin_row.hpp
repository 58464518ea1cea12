// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "report/table.hpp"

#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace kvferry::bench {

/// One measured row of `pin`: the round with the median total, all of its parts, and how it was
/// held against a bare populate in all rounds. What does not apply is empty. Times are seconds of
/// wall clock; GB is 1e9 bytes.
struct PinRow {
  std::string memory;  ///< "own": the benchmark's; "arena": the product's.
  std::string pages;   ///< "normal", "transparent", "huge".
  std::uint32_t threads = 0;
  std::uint64_t piece_bytes = 0;  ///< Of one registration.
  std::uint64_t bytes = 0;
  std::uint32_t rounds = 0;
  std::optional<double> populate_s;
  std::optional<double> register_s;
  double ready_s = 0;  ///< From nothing to registered: with the mapping, and the arena's checks.
  std::optional<double> unregister_s;
  double total_s = 0;  ///< From mapping to unmapping, but for the verification.
  std::optional<double> populate_gb_per_s;
  /// A bare populate's seconds over this row's ready_s, of the same round; the median of the
  /// rounds.
  std::optional<double> percent_of_bare;
  double huge_percent = 0;  ///< Of the bytes, in huge pages that the kernel really gave.
  bool verified = false;
};

[[nodiscard]] Table table_of(std::span<const PinRow> rows);
/// The inverse, of one row.
void read_row(PinRow& row, const CellAt& cell_at);

}  // namespace kvferry::bench
