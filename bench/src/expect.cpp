// SPDX-License-Identifier: Apache-2.0
#include "expect/expected_rows.hpp"
#include "options/copy_options.hpp"
#include "options/pipeline_options.hpp"
#include "report/expect_row.hpp"
#include "subcommands.hpp"

#include <CLI/CLI.hpp>

#include <utility>

namespace kvferry::bench {
namespace {

constexpr double kPercent = 100;
constexpr double kBytesPerGb = 1e9;

double peak_of(const DeviceProfile& device, Traffic traffic) {
  return peak_of({0, device.h2d_gb_per_s, device.d2h_gb_per_s, device.both_gb_per_s}, traffic);
}

ExpectRow row_of(const DeviceProfile& device, Traffic traffic, const Expected& expected) {
  ExpectRow row;
  row.direction = to_string(traffic);
  row.expected_gb_per_s = expected.gb_per_s;
  row.percent_of_peak = kPercent * expected.gb_per_s / peak_of(device, traffic);
  row.expected_slow_down_percent = expected.slow_down_percent;
  row.bound_by = to_string(expected.bound);
  return row;
}

/// Says, without a GPU, what `copy` and `pipeline` should measure on one.
class Expect final : public Subcommand {
 public:
  [[nodiscard]] const char* name() const override { return "expect"; }
  [[nodiscard]] const char* summary() const override {
    return "what copy and pipeline should measure on a known GPU, by the performance model, in "
           "GB/s; needs no device";
  }
  [[nodiscard]] bool uses_device() const override { return false; }
  void add_options(CLI::App& app) override;
  void check_options(const CommonOptions& options) override;
  void run(Bench& bench, Report& report) override;

 private:
  [[nodiscard]] std::vector<ExpectRow> copies() const;
  [[nodiscard]] std::vector<ExpectRow> transfers() const;
  [[nodiscard]] ExpectRow transfer(const PipelineSubject& subject,
                                   std::optional<gpu::CoRunKind> beside) const;

  std::string gpu_ = "h100-sxm";
  CLI::App* of_copy_ = nullptr;
  CLI::App* of_pipeline_ = nullptr;
  CopyOptions copy_;
  PipelineOptions pipeline_;
  DeviceProfile device_;
  std::vector<CopyRowOptions> copy_rows_;
  PipelineSettings settings_;
};

void Expect::add_options(CLI::App& app) {
  app.add_option("--gpu", gpu_, "GPU whose data sheet is used; list: show the known GPUs")
      ->type_name("NAME")
      ->each([](const std::string& name) {
        if (name == "list") throw CLI::CallForVersion(known_profiles_text(), 0);
      })
      ->capture_default_str();
  const auto part = [&app](const char* name, const char* about) {
    CLI::App* const sub = app.add_subcommand(name, about);
    sub->fallthrough();
    return sub;
  };
  app.require_subcommand(0, 1);
  of_copy_ = part("copy", "only the rows of copy, with the options of copy");
  add_copy_options(*of_copy_, copy_);
  of_pipeline_ = part("pipeline", "only the rows of pipeline, with the options of pipeline");
  pipeline_.co_run = {"none", "gemm", "stream"};
  add_pipeline_options(*of_pipeline_, pipeline_);
}

void Expect::check_options(const CommonOptions& options) {
  device_ = profile_from(gpu_);
  copy_rows_ = copy_rows(copy_, options);
  settings_ = pipeline_settings(pipeline_, options);
}

std::vector<ExpectRow> Expect::copies() const {
  std::vector<ExpectRow> rows;
  for (const CopyRowOptions& shape : copy_rows_) {
    ExpectRow row = row_of(device_, shape.traffic, expected_copy(device_, shape));
    row.path = gpu::to_string(shape.way.path);
    row.placement = to_string(shape.placement);
    row.fragment_bytes = shape.fragment_bytes;
    row.count = shape.count;
    row.bytes = directions(shape.traffic).size() * shape.fragment_bytes * shape.count;
    rows.push_back(std::move(row));
  }
  return rows;
}

ExpectRow Expect::transfer(const PipelineSubject& subject,
                           std::optional<gpu::CoRunKind> beside) const {
  ExpectRow row =
      row_of(device_, subject.traffic, expected_pipeline(device_, settings_, subject, beside));
  row.path = pipeline_path(settings_);
  row.placement = to_string(settings_.shape.slots);
  row.fragment_bytes = settings_.shape.block.fragment_bytes;
  row.count = settings_.shape.blocks_per_plan;
  row.bytes = settings_.shape.plan_bytes();
  row.piece_bytes = expected_piece_bytes(device_, settings_, subject);
  if (subject.limit) row.limit_gb_per_s = *subject.limit / kBytesPerGb;
  if (beside) row.co_run = to_string(*beside);
  return row;
}

std::vector<ExpectRow> Expect::transfers() const {
  std::vector<ExpectRow> rows;
  for (const PipelineSubject& subject : settings_.alone) {
    rows.push_back(transfer(subject, std::nullopt));
  }
  for (const gpu::CoRunKind kind : settings_.co_run) {
    for (const PipelineSubject& subject : settings_.beside) {
      rows.push_back(transfer(subject, kind));
    }
  }
  return rows;
}

void Expect::run(Bench& bench, Report& report) {
  report.verified =
      "computed from data sheets and from the measurements of others: nothing was "
      "measured here";
  report.extra["gpu"] = {{"name", device_.name},
                         {"h2d_gb_per_s", device_.h2d_gb_per_s},
                         {"d2h_gb_per_s", device_.d2h_gb_per_s},
                         {"both_gb_per_s", device_.both_gb_per_s},
                         {"memory_gb_per_s", device_.memory_gb_per_s},
                         {"multiprocessors", device_.num_multiprocessors}};
  report.notes.push_back(profile_text(device_));
  if (!of_pipeline_->parsed()) {
    static_cast<void>(bench.rows.step<ExpectRow>("copy", [&] { return copies(); }));
  }
  if (!of_copy_->parsed()) {
    static_cast<void>(bench.rows.step<ExpectRow>("pipeline", [&] { return transfers(); }));
  }
  for (const ModelOptions& options : {copy_.model, pipeline_.model}) {
    if (std::string text = model_text(options); !text.empty()) report.notes.push_back(text);
  }
}

}  // namespace

std::unique_ptr<Subcommand> make_expect() { return std::make_unique<Expect>(); }

}  // namespace kvferry::bench
