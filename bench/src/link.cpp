// SPDX-License-Identifier: Apache-2.0
#include "measure/device_rate.hpp"
#include "measure/host_reference.hpp"
#include "measure/link_peak.hpp"
#include "measure/numa.hpp"
#include "options/link_command_options.hpp"
#include "progress.hpp"
#include "report/link_matrix.hpp"
#include "subcommands.hpp"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace kvferry::bench {
namespace {

constexpr std::array<Traffic, 3> kTraffic = {Traffic::kHostToDevice, Traffic::kDeviceToHost,
                                             Traffic::kBoth};
constexpr std::array<HostMemoryKind, 2> kMemory = {HostMemoryKind::kPinned,
                                                   HostMemoryKind::kPageable};

using Node = std::optional<std::uint32_t>;

/// The best rate of the pinned copies of each direction, on whichever node the memory is.
LinkPeaks peaks_of(const std::vector<TransferRow>& rows, std::uint64_t copy_bytes) {
  const auto best = [&](Traffic traffic) {
    double rate = 0;
    for (const TransferRow& row : rows) {
      if (row.memory == to_string(HostMemoryKind::kPinned) && row.direction == to_string(traffic)) {
        rate = std::max(rate, *row.gb_per_s);
      }
    }
    return rate;
  };
  return {copy_bytes, best(Traffic::kHostToDevice), best(Traffic::kDeviceToHost),
          best(Traffic::kBoth)};
}

/// Measures the peak that all other percentages refer to, and how much of it pageable memory gets.
class Link final : public Subcommand {
 public:
  [[nodiscard]] const char* name() const override { return "link"; }
  [[nodiscard]] const char* summary() const override {
    return "peak of each direction and of both at once, pinned and pageable, for each NUMA node "
           "and device, in GB/s";
  }
  void add_options(CLI::App& app) override { add_link_command_options(app, options_); }
  void check_options(const CommonOptions& options) override {
    nodes_ = options_.nodes();
    copy_bytes_ = options_.link.copy_bytes(options);
    device_rate_ = options_.device_rate || options.effort == Effort::kFull;
  }
  void run(Bench& bench, Report& report) override;

 private:
  /// Those of nodes_ that have memory to give; one without a number if there is none.
  [[nodiscard]] std::vector<Node> usable_nodes(gpu::Device& device, Report& report) const;
  /// The rows of one device, and its peaks.
  LinkPeaks measure_device(Bench& bench, std::uint32_t ordinal, std::span<const Node> nodes,
                           std::vector<TransferRow>& all) const;
  /// The devices after the first, if they were asked for.
  void measure_others(Bench& bench, std::span<const Node> nodes, std::vector<TransferRow>& all,
                      Report& report) const;

  LinkCommandOptions options_;
  std::vector<std::uint32_t> nodes_;
  std::uint64_t copy_bytes_ = 0;
  bool device_rate_ = false;
};

std::vector<Node> Link::usable_nodes(gpu::Device& device, Report& report) const {
  std::vector<Node> usable;
  for (const std::uint32_t node : nodes_) {
    try {
      const HostMemory probe(device, cpu_tier::HostMapping::page_bytes(), HostMemoryKind::kPageable,
                             node);
      usable.emplace_back(node);
    } catch (const ResourceError& error) {
      if (!options_.names_all_nodes()) throw;
      report.notes.emplace_back(error.what());
    }
  }
  if (usable.empty()) usable.emplace_back();
  return usable;
}

LinkPeaks Link::measure_device(Bench& bench, std::uint32_t ordinal, std::span<const Node> nodes,
                               std::vector<TransferRow>& all) const {
  const HostReference reference(bench.device, options_.host_threads);
  bench.progress.expect(nodes.size() * kTraffic.size() * (kMemory.size() + reference.num_rows()));
  std::vector<TransferRow> rows;
  for (const Node& node : nodes) {
    for (const HostMemoryKind memory : kMemory) {
      for (const Traffic traffic : kTraffic) {
        const bool compares = memory == HostMemoryKind::kPinned;
        const std::string name =
            fmt::format("device {}, node {}, {} {}", ordinal, node ? std::to_string(*node) : "any",
                        to_string(memory), to_string(traffic));
        const auto rivals = bench.rows.step<TransferRow>(name, [&] {
          auto measured = measure_link(bench, traffic, memory, copy_bytes_, node,
                                       compares ? reference : HostReference());
          set_percent_of_host_copy(std::span(measured).first(1), std::span(measured).subspan(1));
          for (TransferRow& row : measured) row.device = ordinal;
          return measured;
        });
        rows.insert(rows.end(), rivals.begin(), rivals.end());
      }
    }
  }
  const LinkPeaks peaks = peaks_of(rows, copy_bytes_);
  for (TransferRow& row : rows) {
    row.percent_of_peak = 100 * *row.gb_per_s / peak_of(peaks, traffic_from(row.direction));
  }
  all.insert(all.end(), rows.begin(), rows.end());
  return peaks;
}

void Link::measure_others(Bench& bench, std::span<const Node> nodes, std::vector<TransferRow>& all,
                          Report& report) const {
  DeviceChoice choice = bench.options.device_choice();
  if (choice.range != DeviceChoice::Range::kAll) return;
  for (choice.ordinal = 1;; ++choice.ordinal) {
    std::unique_ptr<OpenDevice> open;
    try {
      open = std::make_unique<OpenDevice>(choice);
    } catch (const NoSuchDevice& error) {
      report.notes.push_back(
          fmt::format("Devices measured: {}. The next: {}", choice.ordinal, error.what()));
      return;
    }
    Bench other{open->device(), bench.options, bench.verifier, bench.progress, bench.rows};
    measure_device(other, choice.ordinal, nodes, all);
  }
}

void Link::run(Bench& bench, Report& report) {
  // Percentages are of the best row.
  bench.rows.show_at_end();
  const std::vector<Node> nodes = usable_nodes(bench.device, report);
  std::vector<TransferRow> rows;
  const auto device_rate = report.peaks ? report.peaks->device_gb_per_s : std::nullopt;
  report.peaks = measure_device(bench, report.ordinal, nodes, rows);
  if (device_rate_) {
    report.peaks->device_gb_per_s = device_rate ? *device_rate : measure_device_rate(bench);
  }
  measure_others(bench, nodes, rows, report);
  bench.rows.replace(table_of(rows));
  report.matrices = link_matrices(rows);
  if (bench.device.kind() == gpu::BackendKind::kHost) {
    report.notes.emplace_back(
        "The host back end has no link: these are copies by its processors, and all of "
        "its memory is pageable. Its device memory is wherever the kernel put it. memcpy and "
        "streaming are copies of the same bytes by plain threads.");
  }
}

}  // namespace

std::unique_ptr<Subcommand> make_link() { return std::make_unique<Link>(); }

}  // namespace kvferry::bench
