// SPDX-License-Identifier: Apache-2.0
#include "measure/host_reference.hpp"

#include <algorithm>
#include <limits>

namespace kvferry::bench {

HostReference::HostReference(const gpu::Device& device,
                             const std::vector<std::uint32_t>& num_threads) {
  if (device.kind() == gpu::BackendKind::kHost) copies_ = host_copies(num_threads);
}

std::vector<CopyRowOptions> HostReference::beside(std::vector<CopyRowOptions> rows) const {
  CopyRowOptions row = rows.front();
  for (const HostCopy& copy : copies_) {
    row.way.host_copy = copy;
    rows.push_back(row);
  }
  return rows;
}

void set_percent_of_host_copy(std::span<TransferRow> rows,
                              std::span<const TransferRow> references) {
  if (references.empty()) return;
  double least_us = std::numeric_limits<double>::infinity();
  for (const TransferRow& row : references) least_us = std::min(least_us, *row.transfer_us_min);
  for (TransferRow& row : rows) row.percent_of_host_copy = 100 * least_us / *row.transfer_us_min;
}

}  // namespace kvferry::bench
