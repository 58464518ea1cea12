// SPDX-License-Identifier: Apache-2.0
#include "measure/calibration.hpp"

#include "kvferry/base/error.hpp"

#include "measure/traffic.hpp"
#include "options/sizes.hpp"

#include <fmt/format.h>

#include <fstream>
#include <map>
#include <tuple>

namespace kvferry::bench {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kBytesPerGb = 1e9;
constexpr int kCalibrationSchema = 1;

bool is_of_calibration(const TransferRow& row) {
  return row.placement == "shuffled" && row.direction != to_string(Traffic::kBoth) && row.verified;
}

Json json_of(const transfer::CopyPathTable& table) {
  Json rates = Json::array();
  for (const transfer::CopyPathRate& rate : table) {
    const bool to_host = rate.direction == gpu::CopyDirection::kDeviceToHost;
    rates.push_back(
        {{"direction", to_string(to_host ? Traffic::kDeviceToHost : Traffic::kHostToDevice)},
         {"path", gpu::to_string(rate.path)},
         {"run_bytes", rate.run_bytes},
         {"num_runs", rate.num_runs},
         {"bytes_per_second", rate.bytes_per_second}});
  }
  return rates;
}

/// The fastest row of each direction, fragment and count.
std::map<std::tuple<std::string, std::uint64_t, std::uint64_t>, const TransferRow*> winners(
    std::span<const TransferRow> rows) {
  std::map<std::tuple<std::string, std::uint64_t, std::uint64_t>, const TransferRow*> best;
  for (const TransferRow& row : rows) {
    if (!is_of_calibration(row)) continue;
    const TransferRow*& known = best[{row.direction, *row.fragment_bytes, *row.count}];
    if (known == nullptr || *known->gb_per_s < *row.gb_per_s) known = &row;
  }
  return best;
}

}  // namespace

transfer::CopyPathTable calibration_table(std::span<const TransferRow> rows) {
  transfer::CopyPathTable table;
  for (const TransferRow& row : rows) {
    if (!is_of_calibration(row)) continue;
    table.push_back({directions(traffic_from(row.direction)).front(), gpu::copy_path_from(row.path),
                     *row.fragment_bytes, *row.count, *row.gb_per_s * kBytesPerGb});
  }
  return table;
}

void add_calibration(const gpu::Device& device, std::span<const TransferRow> rows, Report& report,
                     const std::string& file) {
  const Json table = {{"schema", kCalibrationSchema},
                      {"device", device.description()},
                      {"family", gpu::to_string(device.traits().family)},
                      {"copy_path_table", json_of(calibration_table(rows))}};
  report.extra["calibration"] = table;
  for (const auto& [shape, row] : winners(rows)) {
    report.notes.push_back(fmt::format("fastest: {} {} x {}: {} ({:.2f} GB/s)", row->direction,
                                       *row->count, bytes_text(*row->fragment_bytes), row->path,
                                       *row->gb_per_s));
  }
  if (file.empty()) return;
  std::ofstream out(file);
  out << table.dump(2) << '\n';
  out.close();
  if (!out) throw ResourceError(fmt::format("the calibration {} cannot be written", file));
}

}  // namespace kvferry::bench
