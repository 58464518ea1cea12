// SPDX-License-Identifier: Apache-2.0
#include "lab_subcommands.hpp"
#include "options/sizes.hpp"
#include "progress.hpp"
#include "trace/list_option.hpp"
#include "trace/measure_replay.hpp"
#include "trace/trace_input.hpp"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <algorithm>

namespace kvferry::bench {
namespace {

using trace::Trace;

using Words = std::vector<std::string>;

struct TraceOptions {
  Words policies = {};
  std::uint32_t num_queued = 0;
  Words hints = {};
  double sample = 1;
};

/// Measures what policies gain on a trace, side by side, compared with the clairvoyant optimum.
class TraceReplay final : public Subcommand {
 public:
  [[nodiscard]] const char* name() const override { return "trace"; }
  [[nodiscard]] const char* summary() const override {
    return "hit rates, bytes moved and time saved by tiers of several sizes and policies on a "
           "trace of requests";
  }
  [[nodiscard]] bool uses_device() const override { return false; }
  void add_options(CLI::App& app) override;
  void check_options(const CommonOptions& options) override;
  void run(Bench& bench, Report& report) override;

 private:
  void replay(Bench& bench, const Trace& requests, std::string_view traffic) const;
  /// Describes the trace, and the most that any tier would gain on it.
  void describe(const Trace& requests, Report& report) const;

  trace::TraceInput input_;
  TraceOptions options_;
  std::vector<const trace::Policy*> policies_;
  trace::ReplayOptions replay_;
  std::vector<trace::HintStyle> hints_;
};

void TraceReplay::add_options(CLI::App& app) {
  input_.add_options(app);
  trace::add_list(
      app, "--policy", options_.policies,
      "lru, arc, s3-fifo, sieve, second-sight, lru/second_offer, lru/adaptive, arc/adaptive, "
      "adaptive/always, adaptive, optimum, all [lru,arc,s3-fifo,adaptive,optimum]");
  app.add_option("--queued", options_.num_queued,
                 "how many queued requests the tier knows before their turn; the references "
                 "ignore them")
      ->capture_default_str();
  trace::add_list(app, "--hints", options_.hints,
                  "what clients say about their blocks: none, right, wrong, random, retain, "
                  "demote; the references ignore it [none]");
  app.add_option("--sample", options_.sample,
                 "replay only this share of the blocks, in a tier with the same share of the "
                 "slots, for a quick look")
      ->check(CLI::Range(0.001, 1.0))
      ->capture_default_str();
}

void TraceReplay::check_options(const CommonOptions& options) {
  policies_ = trace::policies_named(options_.policies);
  for (const std::string& text : options_.hints) hints_.push_back(trace::hint_style_from(text));
  if (hints_.empty()) hints_.push_back(trace::HintStyle::kNone);
  replay_.num_queued = options_.num_queued;
  replay_.sample = options_.sample;
  // The counts of a replay are the same every time. More rounds only help to measure its time.
  replay_.num_warm_ups = options.num_warm_up_rounds.value_or(0);
  replay_.num_rounds = options.rounds(1, 1);
  input_.check_options(options);
}

void TraceReplay::replay(Bench& bench, const Trace& requests, std::string_view traffic) const {
  trace::ReplayOptions options = replay_;
  options.time = input_.time_model(requests);
  const trace::Policy& best = trace::policy_named(trace::kOptimum);
  for (const std::uint64_t capacity : input_.capacities(requests)) {
    std::optional<trace::MeasuredReplay> optimum;
    const auto best_of = [&]() -> const trace::MeasuredReplay& {
      if (!optimum) optimum = trace::measure_replay(bench, requests, capacity, best, options);
      return *optimum;
    };
    const auto add_row = [&](const trace::Policy& policy) {
      const bool says_nothing = options.hints == trace::HintStyle::kNone;
      const auto shown = says_nothing
                             ? policy.name
                             : fmt::format("{}, {} hints", policy.name, to_string(options.hints));
      const auto name = fmt::format("{} {} blocks {}", traffic, capacity, shown);
      static_cast<void>(bench.rows.step<trace::TraceRow>(name, [&] {
        const trace::MeasuredReplay& most = best_of();
        const auto measured =
            &policy == &best ? most
                             : trace::measure_replay(bench, requests, capacity, policy, options);
        std::vector<trace::TraceRow> rows = {
            trace::row_of(measured, most, capacity, policy, options.time)};
        rows.back().traffic = traffic;
        rows.back().policy = shown;
        return rows;
      }));
    };
    for (const trace::Policy* const policy : policies_) {
      for (const trace::HintStyle hints : hints_) {
        options.hints = hints;
        if (hints == hints_.front() || policy->listens) add_row(*policy);
      }
    }
  }
}

void TraceReplay::describe(const Trace& requests, Report& report) const {
  const std::uint64_t block_bytes = input_.time_model(requests).block_bytes;
  const auto endless = trace::replay_endless(requests);
  report.extra["trace"] = {{"name", requests.name()},
                           {"requests", requests.num_requests()},
                           {"tokens", requests.num_tokens()},
                           {"accesses", requests.num_accesses()},
                           {"distinct_blocks", requests.num_distinct()},
                           {"block_tokens", requests.block_tokens()},
                           {"block_bytes", block_bytes},
                           {"read_s", input_.read_s()},
                           {"endless_hit_percent", endless.hit_percent()},
                           {"endless_loadable_hit_percent", endless.load_percent()}};
  report.notes.push_back(fmt::format(
      "{}: {} requests, {} tokens, {} block accesses to {} blocks of {} tokens "
      "({}), read in {:.2f} s. An unlimited tier would hit {:.1f} % and load "
      "{:.1f} %.",
      requests.name(), requests.num_requests(), requests.num_tokens(), requests.num_accesses(),
      requests.num_distinct(), requests.block_tokens(), bytes_text(block_bytes), input_.read_s(),
      endless.hit_percent(), endless.load_percent()));
  if (requests.num_misfits() > 0) {
    report.notes.push_back(
        fmt::format("{} requests have more or fewer blocks than their tokens need at {} tokens "
                    "per block: --block-tokens may be wrong.",
                    requests.num_misfits(), requests.block_tokens()));
  }
}

void TraceReplay::run(Bench& bench, Report& report) {
  const bool optimum_shown = std::find(policies_.begin(), policies_.end(),
                                       &trace::policy_named(trace::kOptimum)) != policies_.end();
  std::size_t num_rows = optimum_shown ? 0 : 1;
  for (const trace::Policy* const policy : policies_) {
    num_rows += policy->listens ? hints_.size() : 1;
  }
  bench.progress.expect(input_.num_traces() * input_.num_capacities() * num_rows);
  report.warm_up_rounds = replay_.num_warm_ups;
  report.verified = "every replay's counts agree with each other and with the trace";
  input_.for_each(bench.options.seed, [&](const Trace& requests, std::string_view traffic) {
    if (traffic.empty()) describe(requests, report);
    if (options_.sample < 1) {
      replay(bench, requests.sampled(options_.sample), traffic);
    } else {
      replay(bench, requests, traffic);
    }
  });
  if (options_.sample < 1) {
    report.notes.push_back(
        fmt::format("This is a sample of {:.3g} % of the blocks, in a tier with the same share "
                    "of the slots. Counts are scaled up by the same factor. The time is that of "
                    "the sample.",
                    100 * options_.sample));
  }
  report.extra["sample"] = options_.sample;
  const trace::TimeModel& rates = input_.rates();
  report.extra["prefill_tokens_per_second"] = rates.prefill_tokens_per_second;
  report.extra["link_gb_per_s"] = rates.link_gb_per_s;
  report.notes.push_back(
      fmt::format("The time saved is an estimate: the time to compute the loaded tokens at "
                  "{:.0f} tokens/s, minus the time of their loads at {} GB/s. That rate is of "
                  "prefill without attention, so the time to compute is the least possible. "
                  "Stores run at the same time. The engine is assumed to have no prefix "
                  "cache of its own.",
                  rates.prefill_tokens_per_second, rates.link_gb_per_s));
}

}  // namespace

std::unique_ptr<Subcommand> make_trace() { return std::make_unique<TraceReplay>(); }

}  // namespace kvferry::bench
