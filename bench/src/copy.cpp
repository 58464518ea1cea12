// SPDX-License-Identifier: Apache-2.0
#include "expect/expected_rows.hpp"
#include "measure/copy_row.hpp"
#include "measure/host_reference.hpp"
#include "measure/link_peak.hpp"
#include "options/copy_options.hpp"
#include "options/link_command_options.hpp"
#include "options/sizes.hpp"
#include "progress.hpp"
#include "subcommands.hpp"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

namespace kvferry::bench {
namespace {

/// Measures every copy path for each fragment size, count, direction and placement.
class Copy final : public Subcommand {
 public:
  [[nodiscard]] const char* name() const override { return "copy"; }
  [[nodiscard]] const char* summary() const override {
    return "every copy path for each fragment size, count, direction and placement, in "
           "GB/s and % of the link's peak";
  }

  void add_options(CLI::App& app) override {
    add_copy_options(app, options_);
    add_host_threads_option(app, host_threads_);
    add_link_options(app, link_);
  }

  void check_options(const CommonOptions& options) override;
  void run(Bench& bench, Report& report) override;

 private:
  /// The rows of all paths for one shape. They are measured by turns with those of `reference`,
  /// which come after them in the report.
  [[nodiscard]] static std::vector<TransferRow> measure(Bench& bench,
                                                        std::span<const CopyRowOptions> paths,
                                                        const HostReference& reference,
                                                        const LinkPeaks& peaks);

  std::vector<CopyRowOptions> shapes_;
  CopyOptions options_;
  LinkOptions link_;
  std::uint64_t link_bytes_ = 0;
  std::vector<std::uint32_t> host_threads_ = default_host_threads();
};

void Copy::check_options(const CommonOptions& options) {
  options.require_one_device();
  link_bytes_ = link_.copy_bytes(options);
  shapes_ = copy_rows(options_, options);
}

std::vector<TransferRow> Copy::measure(Bench& bench, std::span<const CopyRowOptions> paths,
                                       const HostReference& reference, const LinkPeaks& peaks) {
  const CopyRowOptions& shape = paths.front();
  const std::string placement = to_string(shape.placement);
  bench.progress.begin_row(fmt::format("{}, {} x {}, {}", to_string(shape.traffic), shape.count,
                                       bytes_text(shape.fragment_bytes), placement),
                           paths.size() + reference.num_rows());
  std::vector<TransferRow> rows =
      measure_copies(bench, reference.beside({paths.begin(), paths.end()}), peaks);
  for (TransferRow& row : rows) row.placement = placement;
  for (std::size_t i = 0; i < paths.size(); ++i) {
    const gpu::CopyPath path = paths[i].way.path;
    rows[i].path = gpu::to_string(path);
    // Copy engines use no multiprocessors. How many a kernel uses is the device's choice.
    const bool by_calls = path == gpu::CopyPath::kPerRun || path == gpu::CopyPath::kBatch;
    if (by_calls && bench.device.kind() != gpu::BackendKind::kHost) rows[i].multiprocessors = 0;
    if (bench.is_modelled()) {
      set_expected(rows[i], expected_copy(measured_profile(bench.device, peaks), paths[i]));
    }
  }
  set_percent_of_host_copy(std::span(rows).first(paths.size()),
                           std::span(rows).subspan(paths.size()));
  return rows;
}

void Copy::run(Bench& bench, Report& report) {
  const HostReference reference(bench.device, host_threads_);
  // The paths of one shape follow one another.
  const std::size_t num_paths = options_.paths.size();
  const std::size_t num_groups = shapes_.size() / num_paths;
  bench.progress.expect(kNumPeakRows + num_groups * (num_paths + reference.num_rows()));
  const LinkPeaks& peaks = bench.rows.peaks([&] { return measure_link_peaks(bench, link_bytes_); });
  for (std::size_t group = 0; group < num_groups; ++group) {
    const auto paths = std::span(shapes_).subspan(group * num_paths, num_paths);
    const CopyRowOptions& shape = paths.front();
    static_cast<void>(bench.rows.step<TransferRow>(
        fmt::format("{} {} x {} B {}", to_string(shape.traffic), shape.count, shape.fragment_bytes,
                    to_string(shape.placement)),
        [&] { return measure(bench, paths, reference, peaks); }));
  }
  if (const std::string model = model_text(options_.model); !model.empty()) {
    report.notes.push_back(model);
  }
  report.notes.emplace_back(
      "A time is that of one transfer. The transfers of a round run back to back.");
}

}  // namespace

std::unique_ptr<Subcommand> make_copy() { return std::make_unique<Copy>(); }

}  // namespace kvferry::bench
