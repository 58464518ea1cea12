// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "measure/copy_row.hpp"
#include "report/transfer_row.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvferry::bench {

/// Copies by the processor of what the host back end copies, in the same run: what it is held
/// against.
class HostReference {
 public:
  /// None.
  HostReference() = default;
  /// Of `num_threads` threads each, both kinds. None if the device is not the host back end's.
  HostReference(const gpu::Device& device, const std::vector<std::uint32_t>& num_threads);

  [[nodiscard]] std::size_t num_rows() const { return copies_.size(); }
  /// `rows` and behind them its own: copies of the same bytes as the first, whatever its way.
  [[nodiscard]] std::vector<CopyRowOptions> beside(std::vector<CopyRowOptions> rows) const;

 private:
  std::vector<HostCopy> copies_;
};

/// Gives `rows` their percentage of the fastest of `references`, by the fastest round of each (what
/// the neighbours of a shared machine take is in the medians); nothing if there are none.
void set_percent_of_host_copy(std::span<TransferRow> rows, std::span<const TransferRow> references);

}  // namespace kvferry::bench
