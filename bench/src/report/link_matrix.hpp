// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "report/report.hpp"
#include "report/transfer_row.hpp"

#include <span>
#include <vector>

namespace kvferry::bench {

/// The rates of `link` as matrices, one for each kind of memory and direction: NUMA nodes are rows,
/// devices are columns. Empty if there is only one node and one device.
[[nodiscard]] std::vector<Matrix> link_matrices(std::span<const TransferRow> rows);

}  // namespace kvferry::bench
