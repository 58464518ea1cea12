// SPDX-License-Identifier: Apache-2.0
#include "measure/calibration.hpp"
#include "measure/copy_row.hpp"
#include "measure/host_reference.hpp"
#include "measure/link_peak.hpp"
#include "options/link_command_options.hpp"
#include "options/model_options.hpp"
#include "options/sizes.hpp"
#include "progress.hpp"
#include "subcommand.hpp"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <algorithm>

namespace kvferry::bench {
namespace {

using Words = std::vector<std::string>;

constexpr std::uint32_t kFullRounds = 12;
constexpr std::uint32_t kQuickRounds = 3;

/// What the command line says, and by default.
struct CopyOptions {
  Words paths = {"per_run", "batch", "kernel", "staged"};
  Words fragments = {};
  std::vector<std::uint32_t> counts = {};
  ModelOptions model;
  std::uint32_t num_blocks = 0;
  Words directions = {"h2d", "d2h", "both"};
  Words placements = {"shuffled"};
  std::string staged_piece = "8MiB";
  std::string max_set = "64MiB";
  std::string round_size = {};
  std::string calibration_file = {};
  std::vector<std::uint32_t> host_threads = default_host_threads();
};

/// Every copy path over fragment size, count, direction and placement.
class Copy final : public Subcommand {
 public:
  [[nodiscard]] const char* name() const override { return "copy"; }
  [[nodiscard]] const char* summary() const override {
    return "every copy path by fragment bytes, count, direction and placement, in GB/s and % of "
           "the link's peak";
  }

  void add_options(CLI::App& app) override {
    const auto list = [&app](const char* flag, auto& target, const char* help) {
      return app.add_option(flag, target, help)->delimiter(',');
    };
    list("--path", options_.paths, "per_run, batch, kernel, staged")->capture_default_str();
    list("--fragment", options_.fragments,
         "bytes of a fragment [1KiB,4KiB,8KiB,16KiB,32KiB,64KiB,256KiB,512KiB,2MiB; quick: "
         "4KiB,64KiB]");
    list("--count", options_.counts, "fragments of a transfer [512,4096; quick: 256]")
        ->check(CLI::PositiveNumber);
    add_model_options(app, options_.model);
    app.add_option("--blocks", options_.num_blocks,
                   "of --model: blocks of a transfer, all fragments of each [32; quick: 4]")
        ->check(CLI::PositiveNumber);
    list("--direction", options_.directions, "h2d, d2h, both")->capture_default_str();
    list("--placement", options_.placements,
         "of the fragments on the device: contiguous, shuffled, runs:8 (8 in a row); in host "
         "memory they lie packed")
        ->capture_default_str();
    app.add_option("--staged-piece", options_.staged_piece,
                   "bytes that the staged path packs before it copies them")
        ->capture_default_str();
    app.add_option("--max-set", options_.max_set,
                   "bytes of a transfer; a larger one gets fewer fragments")
        ->capture_default_str();
    app.add_option("--round-size", options_.round_size,
                   "bytes of a round: as many transfers, each of other fragments, run back to back "
                   "[64MiB; quick: 4MiB]");
    app.add_flag("--calibrate", calibrate_,
                 "say which path is the fastest for each shape, as the config takes it");
    app.add_option("--calibration-file", options_.calibration_file,
                   "write what --calibrate says to this file");
    add_host_threads_option(app, options_.host_threads);
    add_link_options(app, link_);
  }

  void check_options(const CommonOptions& options) override;
  void run(Bench& bench, Report& report) override;

 private:
  /// The rows of all paths for one shape, by turns with those of `reference`, which stand behind
  /// them.
  [[nodiscard]] static std::vector<TransferRow> measure(Bench& bench,
                                                        std::span<const CopyRowOptions> paths,
                                                        const HostReference& reference,
                                                        const LinkPeaks& peaks);
  /// Which fragments: as given, by the model, or by default.
  void choose_fragments(Effort effort);

  /// The rows to measure, but for their rounds.
  std::vector<CopyRowOptions> shapes_;
  CopyOptions options_;
  LinkOptions link_;
  std::uint64_t link_bytes_ = 0;
  bool calibrate_ = false;
};

std::uint32_t sets_per_round(std::uint64_t round_bytes, std::uint64_t set_bytes) {
  return static_cast<std::uint32_t>(std::clamp<std::uint64_t>(round_bytes / set_bytes, 1, 4096));
}

void Copy::choose_fragments(Effort effort) {
  const bool quick = effort == Effort::kQuick;
  const auto block = block_shape(options_.model);
  if (!block && options_.num_blocks != 0) throw ConfigError("--blocks goes with --model");
  if (block) {
    if (!options_.fragments.empty() || !options_.counts.empty()) {
      throw ConfigError("--model says what --fragment and --count say: give it or them");
    }
    const std::uint32_t num_blocks =
        options_.num_blocks != 0 ? options_.num_blocks : (quick ? 4U : 32U);
    options_.fragments = {std::to_string(block->fragment_bytes)};
    options_.counts = {num_blocks * block->num_fragments};
    return;
  }
  if (options_.fragments.empty()) {
    options_.fragments =
        quick ? Words{"4KiB", "64KiB"} : Words{"1KiB",  "4KiB",   "8KiB",   "16KiB", "32KiB",
                                               "64KiB", "256KiB", "512KiB", "2MiB"};
  }
  if (options_.counts.empty()) {
    options_.counts =
        quick ? std::vector<std::uint32_t>{256} : std::vector<std::uint32_t>{512, 4096};
  }
}

void Copy::check_options(const CommonOptions& options) {
  options.require_one_device();
  const bool quick = options.effort == Effort::kQuick;
  choose_fragments(options.effort);
  if (options_.round_size.empty()) options_.round_size = quick ? "4MiB" : "64MiB";
  if (calibrate_ && std::find(options_.placements.begin(), options_.placements.end(), "shuffled") ==
                        options_.placements.end()) {
    throw ConfigError("--calibrate looks at --placement shuffled, which is not among those given");
  }
  if (!options_.calibration_file.empty()) calibrate_ = true;
  link_bytes_ = link_.copy_bytes(options);
  const std::uint64_t max_set = bytes_from(options_.max_set);
  const std::uint64_t round_bytes = bytes_from(options_.round_size);
  for (const std::string& placement : options_.placements) {
    for (const std::string& direction : options_.directions) {
      for (const std::string& fragment : options_.fragments) {
        CopyRowOptions shape;
        shape.traffic = traffic_from(direction);
        shape.placement = placement_from(placement);
        shape.fragment_bytes = bytes_from(fragment);
        shape.staged_piece_bytes = bytes_from(options_.staged_piece);
        shape.rounds = {options.warm_up_rounds(), options.rounds(kFullRounds, kQuickRounds)};
        std::uint32_t last_count = 0;
        for (const std::uint32_t wanted : options_.counts) {
          shape.count = static_cast<std::uint32_t>(
              std::clamp<std::uint64_t>(max_set / shape.fragment_bytes, 1, wanted));
          // Two counts that were cut to the same one are one row.
          if (shape.count == last_count) continue;
          last_count = shape.count;
          shape.num_sets = sets_per_round(round_bytes, shape.fragment_bytes * shape.count);
          for (const std::string& path : options_.paths) {
            shape.way.path = gpu::copy_path_from(path);
            shapes_.push_back(shape);
          }
        }
      }
    }
  }
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
    // Copy engines are none of the multiprocessors; how many a kernel takes, the device chooses.
    const bool by_calls = path == gpu::CopyPath::kPerRun || path == gpu::CopyPath::kBatch;
    if (by_calls && bench.device.kind() != gpu::BackendKind::kHost) rows[i].multiprocessors = 0;
  }
  set_percent_of_host_copy(std::span(rows).first(paths.size()),
                           std::span(rows).subspan(paths.size()));
  return rows;
}

void Copy::run(Bench& bench, Report& report) {
  const HostReference reference(bench.device, options_.host_threads);
  // The paths of one shape follow one another.
  const std::size_t num_paths = options_.paths.size();
  const std::size_t num_groups = shapes_.size() / num_paths;
  bench.progress.expect(kNumPeakRows + num_groups * (num_paths + reference.num_rows()));
  const LinkPeaks& peaks = bench.rows.peaks([&] { return measure_link_peaks(bench, link_bytes_); });
  std::vector<TransferRow> rows;
  for (std::size_t group = 0; group < num_groups; ++group) {
    const auto paths = std::span(shapes_).subspan(group * num_paths, num_paths);
    const CopyRowOptions& shape = paths.front();
    const auto measured = bench.rows.step<TransferRow>(
        fmt::format("{} {} x {} B {}", to_string(shape.traffic), shape.count, shape.fragment_bytes,
                    to_string(shape.placement)),
        [&] { return measure(bench, paths, reference, peaks); });
    rows.insert(rows.end(), measured.begin(),
                measured.begin() + static_cast<std::ptrdiff_t>(num_paths));
  }
  if (const std::string model = model_text(options_.model); !model.empty()) {
    report.notes.push_back(model);
  }
  report.notes.emplace_back(
      "Times are those of one transfer; transfers of a round run back to back.");
  if (calibrate_) add_calibration(bench.device, rows, report, options_.calibration_file);
}

}  // namespace

std::unique_ptr<Subcommand> make_copy() { return std::make_unique<Copy>(); }

}  // namespace kvferry::bench
