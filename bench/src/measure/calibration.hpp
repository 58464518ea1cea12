// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/gpu/device.hpp"
#include "kvferry/transfer/copy_path_rate.hpp"

#include "report/report.hpp"
#include "report/transfer_row.hpp"

#include <span>
#include <string>
#include <vector>

namespace kvferry::bench {

/// The rates that the transfer component's choice begins with (TransferOptions::copy_path_table):
/// of verified rows with shuffled placement and one direction.
[[nodiscard]] transfer::CopyPathTable calibration_table(std::span<const TransferRow> rows);

/// Adds calibration_table() to `report` ("calibration" in the JSON), the fastest path of each shape
/// to its notes, and writes the table as JSON to `file` unless that is empty: {"schema", "device",
/// "family", "copy_path_table": [{"direction", "path", "run_bytes", "num_runs",
/// "bytes_per_second"}]}. Throws ResourceError if the file cannot be written.
void add_calibration(const gpu::Device& device, std::span<const TransferRow> rows, Report& report,
                     const std::string& file);

}  // namespace kvferry::bench
