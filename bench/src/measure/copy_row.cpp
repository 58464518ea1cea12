// SPDX-License-Identifier: Apache-2.0
#include "measure/copy_row.hpp"

#include "progress.hpp"

#include <utility>

namespace kvferry::bench {
namespace {

constexpr double kBytesPerUsOfOneGbPerS = 1e3;
constexpr double kPercent = 100;
// The quantile that is the smallest sample as long as there are fewer than a million.
constexpr double kLeast = 1e-6;

std::vector<std::unique_ptr<Lane>> make_lanes(Bench& bench,
                                              std::span<const CopyRowOptions> rivals) {
  const CopyRowOptions& shape = rivals.front();
  std::vector<CopyWay> ways;
  for (const CopyRowOptions& rival : rivals) ways.push_back(rival.way);
  std::vector<std::unique_ptr<Lane>> lanes;
  for (const gpu::CopyDirection direction : directions(shape.traffic)) {
    lanes.push_back(std::make_unique<Lane>(
        bench.device,
        make_fragment_sets(shape.fragment_bytes, shape.count, shape.num_sets, shape.placement,
                           bench.options.seed + lanes.size()),
        LaneOptions{direction, shape.host_memory, shape.numa_node, shape.staged_piece_bytes,
                    ways}));
  }
  return lanes;
}

TransferRow row_of(const CopyRowOptions& options, std::uint64_t descriptors,
                   const RowTimes& times) {
  TransferRow row;
  row.direction = to_string(options.traffic);
  row.fragment_bytes = options.fragment_bytes;
  row.count = options.count;
  row.descriptors = descriptors;
  row.rounds = options.rounds.measured;
  if (options.way.host_copy) {
    row.path = to_string(options.way.host_copy->kind);
    row.threads = options.way.host_copy->num_threads;
  }
  row.numa_node = options.numa_node;
  row.submit_us_mean = times.submit.mean_us();
  row.submit_us_p99 = times.submit.percentile_us(0.99);
  row.cpu_us_per_descriptor = times.submit_cpu.mean_us() / static_cast<double>(descriptors);
  row.verified = times.verified;
  return row;
}

}  // namespace

std::vector<TransferRow> measure_copies(Bench& bench, std::span<const CopyRowOptions> rivals,
                                        const std::optional<LinkPeaks>& peaks) {
  const auto lanes = make_lanes(bench, rivals);
  const std::vector<RowTimes> times =
      measure_rows(bench.device, lanes, rivals.size(), rivals.front().rounds, bench.verifier,
                   [&](std::uint32_t done, std::uint32_t of) { bench.progress.round(done, of); });
  std::uint64_t bytes = 0;
  for (const auto& lane : lanes) bytes += lane->sets().set_bytes();
  std::vector<TransferRow> rows;
  for (std::size_t way = 0; way < rivals.size(); ++way) {
    std::uint64_t descriptors = 0;
    for (const auto& lane : lanes) descriptors += lane->route(way).descriptors_per_set();
    TransferRow row = row_of(rivals[way], descriptors, times[way]);
    add_transfer_times(row, times[way].transfer, bytes);
    if (peaks) {
      row.percent_of_peak = kPercent * *row.gb_per_s / peak_of(*peaks, rivals[way].traffic);
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

double peak_of(const LinkPeaks& peaks, Traffic traffic) {
  switch (traffic) {
    case Traffic::kHostToDevice:
      return peaks.h2d_gb_per_s;
    case Traffic::kDeviceToHost:
      return peaks.d2h_gb_per_s;
    case Traffic::kBoth:
      break;
  }
  return peaks.both_gb_per_s;
}

void add_transfer_times(TransferRow& row, const Samples& transfer, std::uint64_t bytes) {
  row.bytes = bytes;
  row.transfer_us_min = transfer.percentile_us(kLeast);
  row.transfer_us_p50 = transfer.percentile_us(0.5);
  row.transfer_us_p99 = transfer.percentile_us(0.99);
  row.transfer_us_p999 = transfer.percentile_us(0.999);
  row.gb_per_s = static_cast<double>(bytes) / *row.transfer_us_p50 / kBytesPerUsOfOneGbPerS;
}

}  // namespace kvferry::bench
