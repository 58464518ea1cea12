// SPDX-License-Identifier: Apache-2.0
#include "lab_subcommands.hpp"
#include "measure/stopwatch.hpp"
#include "options/model_options.hpp"
#include "options/sizes.hpp"
#include "progress.hpp"
#include "trace/families.hpp"
#include "trace/measure_replay.hpp"
#include "trace/read_trace.hpp"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>

namespace kvferry::bench {
namespace {

using trace::Family;
using trace::Trace;

using Words = std::vector<std::string>;

/// In tokens. These are 3,000, 8,000, 16,000 and 40,000 of Mooncake's blocks: sizes for which
/// others have published hit rates.
constexpr std::array<std::uint64_t, 4> kDefaultCapacities = {
    std::uint64_t{3'000} * trace::kMooncakeBlockTokens,
    std::uint64_t{8'000} * trace::kMooncakeBlockTokens,
    std::uint64_t{16'000} * trace::kMooncakeBlockTokens,
    std::uint64_t{40'000} * trace::kMooncakeBlockTokens};

struct TraceOptions {
  std::string file = {};
  std::string format = "auto";
  Words traffic = {};
  std::uint32_t block_tokens = 0;
  std::string block_bytes = {};
  ModelOptions model = {};
  std::vector<std::uint64_t> capacities = {};
  Words tier_sizes = {};
  Words policies = {};
  std::uint32_t num_queued = 0;
  Words hints = {};
  double session_gap_s = 60;
  double sample = 1;
  double prefill_tokens_per_second = trace::kDefaultPrefillTokensPerSecond;
  double link_gb_per_s = trace::kDefaultLinkGbPerS;
};

std::vector<const Family*> families_named(const Words& names) {
  std::vector<const Family*> chosen;
  for (const std::string& name : names) {
    std::string known;
    const std::size_t num_before = chosen.size();
    for (const Family& family : trace::families()) {
      if (name == family.name || name == "all") chosen.push_back(&family);
      known += std::string(family.name) + ", ";
    }
    if (chosen.size() == num_before) {
      throw ConfigError(
          fmt::format("'{}' is not a kind of synthetic traffic: write {}all", name, known));
    }
  }
  return chosen;
}

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
  /// The size of a block in the memory of one rank. No other place computes it.
  [[nodiscard]] std::uint64_t block_bytes(const Trace& requests) const;
  [[nodiscard]] std::vector<std::uint64_t> capacities(const Trace& requests) const;
  void replay(Bench& bench, const Trace& requests, std::string_view traffic) const;
  /// Describes the trace, and the most that any tier would gain on it.
  void describe(const Trace& requests, Report& report) const;

  TraceOptions options_;
  std::vector<const Family*> families_;
  std::vector<const trace::Policy*> policies_;
  std::vector<std::uint64_t> tier_bytes_;
  std::optional<std::uint64_t> block_bytes_;
  trace::ReplayOptions replay_;
  std::vector<trace::HintStyle> hints_;
  bool quick_ = false;
  std::optional<Trace> trace_;
  double read_s_ = 0;
};

void TraceReplay::add_options(CLI::App& app) {
  const auto list = [&app](const char* flag, auto& target, const char* help) {
    // The flag takes one argument: with more, the parser could not tell whether the next is FILE.
    return app.add_option(flag, target, help)->delimiter(',')->allow_extra_args(false);
  };
  CLI::Option* const file =
      app.add_option("FILE", options_.file,
                     "file of requests with the ids of their blocks, or a directory of WEKA "
                     "sessions");
  app.add_option("--format", options_.format, "format of FILE: auto, mooncake, qwen, weka")
      ->capture_default_str();
  list("--traffic", options_.traffic, "synthetic requests instead of FILE: zipf-1.0, loop-1.1, all")
      ->excludes(file);
  list("--policy", options_.policies,
       "lru, arc, s3-fifo, sieve, second-sight, lru/second_offer, lru/adaptive, arc/adaptive, "
       "adaptive/always, adaptive, optimum, all [lru,arc,s3-fifo,adaptive,optimum]");
  list("--capacity", options_.capacities,
       "blocks of the tier [3000,8000,16000,40000 blocks of 512 "
       "tokens; quick: the first]")
      ->check(
          CLI::Range(std::uint64_t{1}, std::uint64_t{std::numeric_limits<std::int32_t>::max()}));
  list("--tier-size", options_.tier_sizes,
       "bytes of the tier, for example 16GiB; it holds the whole blocks that fit")
      ->type_name("SIZE");
  app.add_option("--block-tokens", options_.block_tokens,
                 "tokens of a block [mooncake: 512; qwen: 16; weka: as the file says]")
      ->check(CLI::Range(1, 1 << 20));
  app.add_option("--block-bytes", options_.block_bytes,
                 "bytes of a block on one rank [128 KiB a token: Llama 3.1 8B, 16 bits]");
  add_model_size_options(app, options_.model);
  app.add_option("--queued", options_.num_queued,
                 "how many queued requests the tier knows before their turn; the references "
                 "ignore them")
      ->capture_default_str();
  list("--hints", options_.hints,
       "what clients say about their blocks: none, right, wrong, random, retain, "
       "demote; the references ignore it [none]");
  app.add_option("--session-gap", options_.session_gap_s,
                 "seconds between the starts of WEKA's sessions, which the files do not say")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--sample", options_.sample,
                 "replay only this share of the blocks, in a tier with the same share of the "
                 "slots, for a quick look")
      ->check(CLI::Range(0.001, 1.0))
      ->capture_default_str();
  app.add_option("--prefill-tokens-per-second", options_.prefill_tokens_per_second,
                 "how fast the engine computes tokens that are not hits: effective FLOP/s "
                 "divided by 2 FLOP per parameter [30000: 8.03e9 parameters, half of 989 "
                 "TFLOP/s]")
      ->check(CLI::PositiveNumber);
  app.add_option("--link-gb-per-s", options_.link_gb_per_s,
                 "rate of the link in either direction, in GB/s [55: PCIe 5 x16]")
      ->check(CLI::PositiveNumber);
}

void TraceReplay::check_options(const CommonOptions& options) {
  if (options_.file.empty() == options_.traffic.empty()) {
    throw ConfigError("trace needs a FILE, or --traffic in its place");
  }
  quick_ = options.effort == Effort::kQuick;
  families_ = families_named(options_.traffic);
  policies_ = trace::policies_named(options_.policies);
  if (!options_.block_bytes.empty()) block_bytes_ = bytes_from(options_.block_bytes);
  if (block_shape(options_.model) && block_bytes_) {
    throw ConfigError(
        "--model and --block-bytes both say how large a block is: leave out one of "
        "them");
  }
  for (const std::string& size : options_.tier_sizes) tier_bytes_.push_back(bytes_from(size));
  replay_.num_queued = options_.num_queued;
  replay_.sample = options_.sample;
  for (const std::string& text : options_.hints) hints_.push_back(trace::hint_style_from(text));
  if (hints_.empty()) hints_.push_back(trace::HintStyle::kNone);
  // The counts of a replay are the same every time. More rounds only help to measure its time.
  replay_.num_warm_ups = options.num_warm_up_rounds.value_or(0);
  replay_.num_rounds = options.rounds(1, 1);
  replay_.time.prefill_tokens_per_second = options_.prefill_tokens_per_second;
  replay_.time.link_gb_per_s = options_.link_gb_per_s;
  trace::ReadOptions read;
  read.format = trace::trace_format_from(options_.format);
  if (options_.block_tokens > 0) read.block_tokens = options_.block_tokens;
  read.session_gap_s = options_.session_gap_s;
  if (options_.file.empty()) return;
  const Stopwatch clock;
  trace_ = trace::read_trace(options_.file, read);
  read_s_ = std::chrono::duration<double>(clock.cost().cpu).count();
  static_cast<void>(capacities(*trace_));
}

std::uint64_t TraceReplay::block_bytes(const Trace& requests) const {
  ModelOptions model = options_.model;
  if (!model.model.empty()) {
    model.block_tokens = requests.block_tokens();
    return block_shape(model)->block_bytes();
  }
  return block_bytes_.value_or(requests.block_tokens() * trace::kDefaultBytesPerToken);
}

std::vector<std::uint64_t> TraceReplay::capacities(const Trace& requests) const {
  std::vector<std::uint64_t> blocks = options_.capacities;
  for (std::size_t i = 0; i < tier_bytes_.size(); ++i) {
    blocks.push_back(tier_bytes_[i] / block_bytes(requests));
    if (blocks.back() == 0) {
      throw ConfigError(fmt::format("--tier-size {} is smaller than a block of {}",
                                    options_.tier_sizes[i], bytes_text(block_bytes(requests))));
    }
  }
  if (!blocks.empty()) return blocks;
  if (!families_.empty()) return {trace::kFamilyCapacity};
  for (const std::uint64_t tokens : kDefaultCapacities) {
    blocks.push_back(std::max<std::uint64_t>(tokens / requests.block_tokens(), 1));
    if (quick_) break;
  }
  return blocks;
}

void TraceReplay::replay(Bench& bench, const Trace& requests, std::string_view traffic) const {
  trace::ReplayOptions options = replay_;
  options.time.block_bytes = block_bytes(requests);
  const trace::Policy& best = trace::policy_named(trace::kOptimum);
  for (const std::uint64_t capacity : capacities(requests)) {
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
  const auto endless = trace::replay_endless(requests);
  report.extra["trace"] = {{"name", requests.name()},
                           {"requests", requests.num_requests()},
                           {"tokens", requests.num_tokens()},
                           {"accesses", requests.num_accesses()},
                           {"distinct_blocks", requests.num_distinct()},
                           {"block_tokens", requests.block_tokens()},
                           {"block_bytes", block_bytes(requests)},
                           {"read_s", read_s_},
                           {"endless_hit_percent", endless.hit_percent()},
                           {"endless_loadable_hit_percent", endless.load_percent()}};
  report.notes.push_back(fmt::format(
      "{}: {} requests, {} tokens, {} block accesses to {} blocks of {} tokens "
      "({}), read in {:.2f} s. An unlimited tier would hit {:.1f} % and load "
      "{:.1f} %.",
      requests.name(), requests.num_requests(), requests.num_tokens(), requests.num_accesses(),
      requests.num_distinct(), requests.block_tokens(), bytes_text(block_bytes(requests)), read_s_,
      endless.hit_percent(), endless.load_percent()));
  if (requests.num_misfits() > 0) {
    report.notes.push_back(
        fmt::format("{} requests have more or fewer blocks than their tokens need at {} tokens "
                    "per block: --block-tokens may be wrong.",
                    requests.num_misfits(), requests.block_tokens()));
  }
}

void TraceReplay::run(Bench& bench, Report& report) {
  const std::size_t num_traces = trace_ ? 1 : families_.size();
  const std::size_t num_capacities =
      trace_ ? capacities(*trace_).size()
             : std::max<std::size_t>(options_.capacities.size() + tier_bytes_.size(), 1);
  const bool optimum_shown = std::find(policies_.begin(), policies_.end(),
                                       &trace::policy_named(trace::kOptimum)) != policies_.end();
  std::size_t num_rows = optimum_shown ? 0 : 1;
  for (const trace::Policy* const policy : policies_) {
    num_rows += policy->listens ? hints_.size() : 1;
  }
  bench.progress.expect(num_traces * num_capacities * num_rows);
  report.warm_up_rounds = replay_.num_warm_ups;
  report.verified = "every replay's counts agree with each other and with the trace";
  if (trace_) {
    describe(*trace_, report);
    if (options_.sample < 1) trace_ = trace_->sampled(options_.sample);
    replay(bench, *trace_, "");
  }
  for (const Family* const family : families_) {
    const Trace made = family->make(bench.options.seed);
    replay(bench, options_.sample < 1 ? made.sampled(options_.sample) : made, family->name);
  }
  if (options_.sample < 1) {
    report.notes.push_back(
        fmt::format("This is a sample of {:.3g} % of the blocks, in a tier with the same share "
                    "of the slots. Counts are scaled up by the same factor. The time is that of "
                    "the sample.",
                    100 * options_.sample));
  }
  report.extra["sample"] = options_.sample;
  report.extra["prefill_tokens_per_second"] = options_.prefill_tokens_per_second;
  report.extra["link_gb_per_s"] = options_.link_gb_per_s;
  report.notes.push_back(
      fmt::format("The time saved is an estimate: the time to compute the loaded tokens at "
                  "{:.0f} tokens/s, minus the time of their loads at {} GB/s. That rate is of "
                  "prefill without attention, so the time to compute is the least possible. "
                  "Stores run at the same time. The engine is assumed to have no prefix "
                  "cache of its own.",
                  options_.prefill_tokens_per_second, options_.link_gb_per_s));
}

}  // namespace

std::unique_ptr<Subcommand> make_trace() { return std::make_unique<TraceReplay>(); }

}  // namespace kvferry::bench
