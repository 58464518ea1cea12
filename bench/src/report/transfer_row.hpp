// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "report/table.hpp"

#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace kvferry::bench {

/// One measured row of `link`, `copy` or `pipeline`. Values that do not apply are empty. The names
/// contain the units; GB is 1e9 bytes.
struct TransferRow {
  std::string direction;  ///< "h2d", "d2h" or "both".
  std::string path;
  std::string memory;                      ///< "pinned" or "pageable".
  std::optional<std::uint64_t> device;     ///< Its ordinal; `link`.
  std::optional<std::uint64_t> numa_node;  ///< Of the host memory; empty: the kernel chose.
  std::string placement;
  std::optional<std::uint64_t> fragment_bytes;
  std::optional<std::uint64_t> count;
  std::optional<std::uint64_t> bytes;        ///< Of one transfer, all directions together.
  std::optional<std::uint64_t> descriptors;  ///< Of one transfer.
  std::optional<std::uint64_t> piece_bytes;  ///< Most bytes of one submission; `pipeline`.
  std::optional<std::uint64_t> rounds;
  std::optional<double> submit_us_mean;
  std::optional<double> submit_us_p99;
  std::optional<double> queue_us;
  std::optional<double> transfer_us_min;
  std::optional<double> transfer_us_p50;
  std::optional<double> transfer_us_p99;
  std::optional<double> transfer_us_p999;
  std::optional<std::uint64_t> round_bytes;  ///< Of all transfers of a round.
  std::optional<double> round_us_p50;        ///< From the first submission to the last end.
  std::optional<double> gb_per_s;
  std::optional<double> percent_of_peak;
  std::optional<std::uint64_t> threads;  ///< Of copies by the processor.
  std::optional<double> percent_of_host_copy;
  std::optional<std::uint64_t> multiprocessors;
  std::optional<double> cpu_us_per_descriptor;
  std::optional<double> limit_gb_per_s;
  std::string verify;                       ///< "all": the figures are those with tags; `pipeline`.
  std::optional<double> untagged_gb_per_s;  ///< Of the rounds without tags, between the others.
  std::optional<double> tagged_share;       ///< gb_per_s divided by untagged_gb_per_s.
  std::optional<std::uint64_t> blocks_checked;
  std::optional<std::uint64_t> blocks_damaged;
  std::string co_run;
  std::optional<double> iteration_us_alone_p50;
  std::optional<double> iteration_us_alone_p99;
  std::optional<double> iteration_us_p50;
  std::optional<double> iteration_us_p99;
  std::optional<double> slow_down_percent;
  std::optional<double> slow_down_percent_p99;
  /// Expected by the performance model (expect/); empty if it does not describe this device.
  std::optional<double> expected_gb_per_s;
  std::optional<double> expected_slow_down_percent;  ///< For slow_down_percent.
  std::string bound_by;                              ///< What sets the expected rate.
  /// "slower", "faster", "costs more", "costs less", joined by "and"; empty if as expected.
  std::string off_model;
  bool verified = false;
};

[[nodiscard]] Table table_of(std::span<const TransferRow> rows);
/// The inverse, for one row.
void read_row(TransferRow& row, const CellAt& cell_at);

}  // namespace kvferry::bench
