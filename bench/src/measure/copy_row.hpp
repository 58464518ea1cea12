// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "measure/lane.hpp"
#include "measure/row_measurement.hpp"
#include "measure/traffic.hpp"
#include "report/report.hpp"
#include "report/transfer_row.hpp"
#include "subcommand.hpp"

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace kvferry::bench {

/// The subject of a row of copies.
struct CopyRowOptions {
  Traffic traffic = Traffic::kHostToDevice;
  CopyWay way;
  HostMemoryKind host_memory = HostMemoryKind::kPinned;
  /// The NUMA node of the host memory: see LaneOptions.
  std::optional<std::uint32_t> numa_node = std::nullopt;
  std::uint64_t fragment_bytes = 0;
  std::uint32_t count = 1;
  std::uint32_t num_sets = 1;
  Placement placement = {0};
  std::uint64_t staged_piece_bytes = std::uint64_t{8} << 20U;
  RoundCounts rounds;
};

/// Measures and verifies rows that differ only in their way of copying, by turns and on the same
/// memory (measure_rows()). The rows have everything except the names of path, memory and
/// placement. The percentages refer to `peaks`. Throws kvferry::Error.
[[nodiscard]] std::vector<TransferRow> measure_copies(Bench& bench,
                                                      std::span<const CopyRowOptions> rivals,
                                                      const std::optional<LinkPeaks>& peaks);

/// The peak of `traffic`, in GB/s.
[[nodiscard]] double peak_of(const LinkPeaks& peaks, Traffic traffic);

/// Writes percentiles of a transfer's time, and the rate of `bytes` in GB/s from the median.
void add_transfer_times(TransferRow& row, const Samples& transfer, std::uint64_t bytes);

}  // namespace kvferry::bench
