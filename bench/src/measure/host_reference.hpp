// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "measure/copy_row.hpp"
#include "report/transfer_row.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvferry::bench {

/// Copies of the same bytes by the processor, in the same run. The host back end is compared with
/// them.
class HostReference {
 public:
  /// No reference.
  HostReference() = default;
  /// Both kinds, with each of `num_threads`. No reference if the device is not the host back end's.
  HostReference(const gpu::Device& device, const std::vector<std::uint32_t>& num_threads);

  [[nodiscard]] std::size_t num_rows() const { return copies_.size(); }
  /// Returns `rows`, followed by the rows of the reference: copies of the same bytes as the first.
  [[nodiscard]] std::vector<CopyRowOptions> beside(std::vector<CopyRowOptions> rows) const;

 private:
  std::vector<HostCopy> copies_;
};

/// Sets the percentage of each of `rows` of the fastest of `references`, by the fastest round of
/// each, because the medians include what other programs on a shared machine take. Does nothing
/// without references.
void set_percent_of_host_copy(std::span<TransferRow> rows, std::span<const TransferRow> references);

}  // namespace kvferry::bench
