// SPDX-License-Identifier: Apache-2.0
#include "measure/link_peak.hpp"

#include "measure/device_rate.hpp"
#include "options/sizes.hpp"
#include "progress.hpp"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

namespace kvferry::bench {
namespace {

constexpr std::uint32_t kFullRounds = 10;
constexpr std::uint32_t kQuickRounds = 3;

}  // namespace

std::uint64_t LinkOptions::copy_bytes(const CommonOptions& common) const {
  if (!copy_size.empty()) return bytes_from(copy_size);
  // A processor's copies reach their full rate with small sizes, and its memory should not be
  // filled.
  const bool host = common.device_choice().kind == gpu::BackendKind::kHost;
  if (common.effort == Effort::kQuick) return host ? 16 * kMiB : 64 * kMiB;
  return host ? 256 * kMiB : kGiB;
}

void add_link_options(CLI::App& app, LinkOptions& options) {
  app.add_option("--link-size", options.copy_size,
                 "bytes of a copy that measures the link's peak [1GiB; host: 256MiB]")
      ->type_name("SIZE");
}

std::vector<TransferRow> measure_link(Bench& bench, Traffic traffic, HostMemoryKind memory,
                                      std::uint64_t copy_bytes,
                                      std::optional<std::uint32_t> numa_node,
                                      const HostReference& reference) {
  CopyRowOptions options;
  options.numa_node = numa_node;
  options.traffic = traffic;
  options.host_memory = memory;
  options.fragment_bytes = copy_bytes;
  options.rounds = {bench.options.warm_up_rounds(),
                    bench.options.rounds(kFullRounds, kQuickRounds)};
  bench.progress.begin_row(fmt::format("link {}, {}", to_string(traffic), to_string(memory)),
                           1 + reference.num_rows());
  std::vector<TransferRow> rows = measure_copies(bench, reference.beside({options}), std::nullopt);
  rows.front().path = "copy_engine";
  rows.front().memory = to_string(memory);
  return rows;
}

LinkPeaks measure_link_peaks(Bench& bench, std::uint64_t copy_bytes) {
  const auto rate = [&](Traffic traffic) {
    return *measure_link(bench, traffic, HostMemoryKind::kPinned, copy_bytes).front().gb_per_s;
  };
  LinkPeaks peaks;
  peaks.copy_bytes = copy_bytes;
  peaks.h2d_gb_per_s = rate(Traffic::kHostToDevice);
  peaks.d2h_gb_per_s = rate(Traffic::kDeviceToHost);
  peaks.both_gb_per_s = rate(Traffic::kBoth);
  if (bench.on_gpu()) peaks.device_gb_per_s = measure_device_rate(bench);
  return peaks;
}

}  // namespace kvferry::bench
