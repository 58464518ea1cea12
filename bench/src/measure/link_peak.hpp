// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "measure/copy_row.hpp"
#include "measure/host_reference.hpp"
#include "report/report.hpp"
#include "report/transfer_row.hpp"
#include "subcommand.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace kvferry::bench {

/// How the link's peak is measured. Every subcommand whose figures refer to the peak has these
/// options.
struct LinkOptions {
  /// Bytes of one copy; empty: 1 GiB (quick: 64 MiB), on the host back end 256 MiB (16 MiB).
  std::string copy_size = {};

  /// Throws ConfigError.
  [[nodiscard]] std::uint64_t copy_bytes(const CommonOptions& common) const;
};
/// Adds --link-size; `options` outlives `app`.
void add_link_options(CLI::App& app, LinkOptions& options);

/// Measures the row of `copy_bytes` in one copy call per direction, on `numa_node` or where the
/// kernel chooses, followed by the rows of `reference`, which are measured by turns with it.
[[nodiscard]] std::vector<TransferRow> measure_link(
    Bench& bench, Traffic traffic, HostMemoryKind memory, std::uint64_t copy_bytes,
    std::optional<std::uint32_t> numa_node = std::nullopt, const HostReference& reference = {});
/// Number of rows that measure_link_peaks() measures.
inline constexpr std::size_t kNumPeakRows = 3;
/// Measures the peaks with which rows are compared: three by measure_link() with pinned memory, and
/// on a GPU that of the device's memory.
[[nodiscard]] LinkPeaks measure_link_peaks(Bench& bench, std::uint64_t copy_bytes);

}  // namespace kvferry::bench
