// SPDX-License-Identifier: Apache-2.0
#include "expect/expected_rows.hpp"
#include "measure/burst_rounds.hpp"
#include "measure/co_run_phase.hpp"
#include "measure/injection_check.hpp"
#include "measure/link_peak.hpp"
#include "measure/pipeline_rig.hpp"
#include "options/pipeline_options.hpp"
#include "progress.hpp"
#include "subcommands.hpp"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <optional>

namespace kvferry::bench {
namespace {

constexpr double kBytesPerGb = 1e9;

/// Measures the transfer component at work (gathers, staging ring, copies, fences), alone or beside
/// the work of an engine.
class Pipeline final : public Subcommand {
 public:
  [[nodiscard]] const char* name() const override { return "pipeline"; }
  [[nodiscard]] const char* summary() const override {
    return "stores and loads as an engine makes them, in GB/s and % of the link's peak, "
           "and how much they slow down compute beside them, in %";
  }
  void add_options(CLI::App& app) override {
    add_pipeline_options(app, options_);
    add_link_options(app, link_);
  }
  void check_options(const CommonOptions& options) override {
    options.require_one_device();
    settings_ = pipeline_settings(options_, options);
    link_bytes_ = link_.copy_bytes(options);
  }
  void run(Bench& bench, Report& report) override;

 private:
  [[nodiscard]] PipelineShape shape_of(const PipelineSubject& subject) const;
  [[nodiscard]] TransferRow measure_bursts(Bench& bench, const PipelineSubject& subject,
                                           Report& report) const;
  /// What a row says of the rounds with tags and those without.
  static void add_verification(TransferRow& row, BurstRounds& plain, BurstRounds& tagged);
  /// Compares what tags find with what was damaged on purpose.
  void check_tags(Bench& bench, Report& report) const;
  [[nodiscard]] TransferRow measure_beside(Bench& bench, const PipelineSubject& subject,
                                           CoRunner& work) const;
  [[nodiscard]] TransferRow row_of(const PipelineSubject& subject,
                                   const transfer::TransferEngine& engine,
                                   const PlanTimes& times) const;

  PipelineOptions options_;
  LinkOptions link_;
  PipelineSettings settings_;
  std::uint64_t link_bytes_ = 0;
};

PipelineShape Pipeline::shape_of(const PipelineSubject& subject) const {
  PipelineShape shape = settings_.shape;
  shape.traffic = subject.traffic;
  return shape;
}

void Pipeline::run(Bench& bench, Report& report) {
  bench.progress.expect(kNumPeakRows + settings_.alone.size() + (settings_.inject != 0 ? 1 : 0) +
                        settings_.beside.size() * settings_.co_run.size());
  const LinkPeaks& peaks = bench.rows.peaks([&] { return measure_link_peaks(bench, link_bytes_); });
  const auto step = [&](std::optional<gpu::CoRunKind> beside, const PipelineSubject& subject,
                        const auto& measure) {
    const std::string name =
        fmt::format("{} beside {}, limit {}, piece {}", to_string(subject.traffic),
                    beside ? to_string(*beside) : "nothing", subject.limit.value_or(0),
                    subject.piece_bytes.value_or(0));
    static_cast<void>(bench.rows.step<TransferRow>(name, [&] {
      TransferRow row = measure();
      row.percent_of_peak = 100 * *row.gb_per_s / peak_of(peaks, subject.traffic);
      if (bench.is_modelled()) {
        set_expected(row, expected_pipeline(measured_profile(bench.device, peaks), settings_,
                                            subject, beside));
      }
      return std::vector<TransferRow>{row};
    }));
  };
  if (!settings_.model_text.empty()) report.notes.push_back(settings_.model_text);
  for (const PipelineSubject& subject : settings_.alone) {
    step(std::nullopt, subject, [&] { return measure_bursts(bench, subject, report); });
  }
  if (!settings_.alone.empty()) {
    report.notes.emplace_back(
        "A rate is the bytes of a round divided by the time from its first "
        "submission to the last end that the host sees. A transfer time is that of "
        "one plan on the device, without the gaps between copies.");
  }
  if (settings_.inject != 0) check_tags(bench, report);
  for (const gpu::CoRunKind kind : settings_.co_run) {
    const auto work = make_co_runner(bench.device, kind, settings_.work);
    report.notes.push_back(work->description() + (settings_.place == CoRunPlace::kCompute
                                                      ? "; on the compute stream"
                                                      : "; on a stream of its own"));
    for (const PipelineSubject& subject : settings_.beside) {
      step(kind, subject, [&] { return measure_beside(bench, subject, *work); });
    }
    if (!work->verify()) throw DeviceError("the results of the co-run work are wrong");
  }
}

TransferRow Pipeline::measure_bursts(Bench& bench, const PipelineSubject& subject,
                                     Report& report) const {
  bench.progress.begin_row(
      fmt::format("{} of {}", to_string(subject.traffic), to_string(settings_.shape.block)));
  PipelineRig rig(bench.device, shape_of(subject));
  const bool verifies = settings_.verify == transfer::Verification::kAll;
  transfer::TransferOptions options = transfer_options(settings_, subject);
  BurstRounds plain(rig, options);
  options.verify = transfer::Verification::kAll;
  std::optional<BurstRounds> tagged;
  if (verifies) tagged.emplace(rig, options);
  const std::uint64_t mismatches_before = bench.verifier.num_mismatches();
  for (std::uint32_t round = 0; round < settings_.rounds.total(); ++round) {
    bench.progress.round(round, settings_.rounds.total());
    const bool is_counted = round >= settings_.rounds.warm_up;
    const auto counts = is_counted ? BurstRounds::Counts::kYes : BurstRounds::Counts::kNo;
    transfer::TransferEngine* const tagger = tagged ? &tagged->engine() : nullptr;
    // By turns, and who begins changes.
    if (tagged && round % 2 == 0) tagged->run(counts, tagger, bench.verifier);
    plain.run(counts, tagger, bench.verifier);
    if (tagged && round % 2 == 1) tagged->run(counts, tagger, bench.verifier);
  }
  BurstRounds& shown = tagged ? *tagged : plain;
  report.extra["copy_paths"][to_string(subject.traffic)] = shown.engine().copy_paths_text();
  TransferRow row = row_of(subject, shown.engine(), shown.times());
  row.rounds = settings_.rounds.measured;
  row.round_bytes =
      directions(subject.traffic).size() * settings_.shape.num_plans * settings_.shape.plan_bytes();
  row.round_us_p50 = shown.rounds().percentile_us(0.5);
  row.gb_per_s = static_cast<double>(*row.round_bytes) / *row.round_us_p50 / 1e3;
  if (tagged) add_verification(row, plain, *tagged);
  row.verified = bench.verifier.num_mismatches() == mismatches_before && shown.num_damaged() == 0;
  return row;
}

void Pipeline::add_verification(TransferRow& row, BurstRounds& plain, BurstRounds& tagged) {
  row.verify = "all";
  row.untagged_gb_per_s =
      static_cast<double>(*row.round_bytes) / plain.rounds().percentile_us(0.5) / 1e3;
  row.tagged_share = *row.gb_per_s / *row.untagged_gb_per_s;
  row.blocks_checked = tagged.num_loaded();
  row.blocks_damaged = tagged.num_damaged();
}

void Pipeline::check_tags(Bench& bench, Report& report) const {
  bench.progress.begin_row("injections");
  const InjectionCheck check = check_injections(settings_.shape, settings_.transfer,
                                                settings_.inject, settings_.rounds.measured);
  report.notes.push_back(to_text(check));
  report.extra["injections"] = {
      {"stored", check.num_stored},         {"loaded", check.num_loaded},
      {"injections", check.num_injections}, {"unchanged", check.num_unchanged},
      {"replaced", check.num_replaced},     {"left", check.num_left},
      {"arrived", check.num_arrived},       {"found", check.num_found},
      {"missed", check.num_missed},         {"invented", check.num_invented}};
  bench.verifier.check_count(check.num_missed + check.num_invented, 0,
                             "damaged block that the tags missed or invented");
}

// The work is timed alone both before and after, so that a device that slows down with time is not
// mistaken for an effect of the copies.
TransferRow Pipeline::measure_beside(Bench& bench, const PipelineSubject& subject,
                                     CoRunner& work) const {
  bench.progress.begin_row(
      fmt::format("{} beside {}", to_string(subject.traffic), work.description()));
  PipelineRig rig(bench.device, shape_of(subject));
  transfer::TransferEngine engine(bench.device, {rig.geometry()}, rig.arena(),
                                  transfer_options(settings_, subject));
  const std::uint64_t mismatches_before = bench.verifier.num_mismatches();
  CoRunLoop loop(rig, work, settings_.place);
  const std::uint32_t half = settings_.num_iterations / 2;
  Samples not_counted;
  Samples alone;
  Samples beside;
  PlanTimes times;
  const PatternKey key = bench.verifier.next_round();
  rig.prepare(key);
  loop.run_alone(half / 4 + 1, not_counted);
  loop.run_alone(half, alone);
  bench.progress.round(1, 3);
  loop.run_beside(settings_.num_iterations, engine, beside, times);
  bench.progress.round(2, 3);
  loop.run_alone(half, alone);
  rig.check_loaded(loop.loaded(), key, bench.verifier);
  for (std::uint32_t p = 0; p < settings_.shape.num_plans; ++p) {
    rig.check_stored(p, loop.stored()[p], key, bench.verifier);
  }
  TransferRow row = row_of(subject, engine, times);
  row.rounds = settings_.num_iterations;
  row.co_run = to_string(work.kind());
  row.gb_per_s = loop.bytes_per_second() / kBytesPerGb;
  row.iteration_us_alone_p50 = alone.percentile_us(0.5);
  row.iteration_us_alone_p99 = alone.percentile_us(0.99);
  row.iteration_us_p50 = beside.percentile_us(0.5);
  row.iteration_us_p99 = beside.percentile_us(0.99);
  row.slow_down_percent = 100 * (*row.iteration_us_p50 / *row.iteration_us_alone_p50 - 1);
  row.slow_down_percent_p99 = 100 * (*row.iteration_us_p99 / *row.iteration_us_alone_p99 - 1);
  row.verified = bench.verifier.num_mismatches() == mismatches_before;
  return row;
}

TransferRow Pipeline::row_of(const PipelineSubject& subject, const transfer::TransferEngine& engine,
                             const PlanTimes& times) const {
  TransferRow row;
  row.direction = to_string(subject.traffic);
  row.path = pipeline_path(settings_);
  row.placement = to_string(settings_.shape.slots);
  row.fragment_bytes = settings_.shape.block.fragment_bytes;
  row.count = settings_.shape.blocks_per_plan;
  row.descriptors =
      std::uint64_t{settings_.shape.blocks_per_plan} * settings_.shape.block.num_fragments;
  row.bytes = settings_.shape.plan_bytes();
  row.piece_bytes = engine.piece_bytes();
  if (subject.limit) row.limit_gb_per_s = *subject.limit / kBytesPerGb;
  if (!times.submit.empty()) {
    row.submit_us_mean = times.submit.mean_us();
    row.submit_us_p99 = times.submit.percentile_us(0.99);
    row.cpu_us_per_descriptor = times.submit_cpu.mean_us() / static_cast<double>(*row.descriptors);
  }
  if (!times.device.empty()) {
    row.queue_us = times.queue.mean_us();
    row.transfer_us_p50 = times.device.percentile_us(0.5);
    row.transfer_us_p99 = times.device.percentile_us(0.99);
    row.transfer_us_p999 = times.device.percentile_us(0.999);
  }
  return row;
}

}  // namespace

std::unique_ptr<Subcommand> make_pipeline() { return std::make_unique<Pipeline>(); }

}  // namespace kvferry::bench
