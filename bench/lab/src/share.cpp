// SPDX-License-Identifier: Apache-2.0
#include "kvferry/base/error.hpp"

#include "lab_subcommands.hpp"
#include "measure/samples.hpp"
#include "meta/time_once.hpp"
#include "options/sizes.hpp"
#include "progress.hpp"
#include "share/engine_crew.hpp"
#include "share/share_row.hpp"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <unistd.h>

namespace kvferry::bench {
namespace {

namespace fs = std::filesystem;

constexpr std::uint32_t kShareRounds = 9;
constexpr std::uint32_t kQuickShareRounds = 2;
/// The number of joins per round.
constexpr std::uint32_t kJoins = 10;
constexpr double kGoalOfTwo = 1.7;
constexpr double kGoalOfJoinMs = 100;

/// If blocks are copied, a tier has a quarter of the chunks: by default half a GiB instead of two.
constexpr std::uint32_t kQuarter = 4;

enum class Company : std::uint8_t {
  kOne,
  kTwoApart,
  kTwoTogether,
  kTwoOfOwnPrompts,
  kOneBesideStopped
};

struct Kind {
  Company company;
  const char* what;
  std::optional<double> goal;
};
constexpr std::array<Kind, 5> kKinds = {{
    {Company::kOne, "one engine", std::nullopt},
    {Company::kTwoApart, "two engines, a tier each", std::nullopt},
    {Company::kTwoTogether, "two engines, one tier", kGoalOfTwo},
    {Company::kTwoOfOwnPrompts, "two engines, one tier, each half of the prompts", kGoalOfTwo},
    {Company::kOneBesideStopped, "one engine, the tier's other one stopped", std::nullopt},
}};

std::chrono::nanoseconds seconds(double count) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(count));
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// Measures what engines in several processes gain from one tier.
class Share final : public Subcommand {
 public:
  [[nodiscard]] const char* name() const override { return "share"; }
  [[nodiscard]] const char* summary() const override {
    return "how much engines that share a CPU tier delay each other, and how long it "
           "takes to join one";
  }
  [[nodiscard]] bool uses_device() const override { return false; }

  void add_options(CLI::App& app) override {
    app.add_option("--chunks", num_chunks_,
                   "chunks of 64 blocks in a tier; a quarter as many if blocks are copied")
        ->check(CLI::Range(16U, 1U << 20))
        ->capture_default_str();
    app.add_option("--block-size", block_sizes_,
                   "bytes that are copied for each block that is stored or loaded; 0: none")
        ->type_name("SIZE")
        ->delimiter(',')
        ->capture_default_str();
    app.add_option("--time", seconds_, "seconds of each round of each row [0.5; quick: 0.05]");
    app.add_option("--settle", settle_seconds_,
                   "seconds before each round, in which each engine gets its part of the tier "
                   "[2; quick: 0]");
    app.add_option("--join-size", join_size_,
                   "bytes of the tier that engines join; only its metadata are touched [64GiB; "
                   "quick: 1GiB]");
    app.add_option("--folder", folder_, "folder for the files of the tiers, on a tmpfs")
        ->capture_default_str();
  }
  void check_options(const CommonOptions& options) override;
  void run(Bench& bench, Report& report) override;

 private:
  [[nodiscard]] fs::path tier_path(int number) const {
    return fs::path(folder_) / fmt::format("kvferry-lab-{}-{}", ::getpid(), number);
  }
  /// Returns the steps of a round and their hits.
  [[nodiscard]] EngineCrew::Progress run_round(const SharedWorkShape& shape, Company company,
                                               Verifier& verifier) const;
  [[nodiscard]] std::vector<ShareRow> measure_work(Bench& bench,
                                                   const SharedWorkShape& shape) const;
  [[nodiscard]] std::vector<ShareRow> measure_joins(Bench& bench) const;

  std::uint32_t num_chunks_ = 512;
  std::vector<std::string> block_sizes_ = {"0", "64KiB"};
  std::vector<SharedWorkShape> shapes_;
  std::optional<double> seconds_;
  std::optional<double> settle_seconds_;
  std::string join_size_;
  std::string folder_ = "/dev/shm";
  std::uint64_t join_bytes_ = 0;
  std::uint32_t num_warm_up_ = 0;
  std::uint32_t num_rounds_ = 0;
};

void Share::check_options(const CommonOptions& options) {
  const bool quick = options.effort == Effort::kQuick;
  if (!seconds_) seconds_ = quick ? 0.05 : 0.5;
  if (*seconds_ <= 0) throw ConfigError(fmt::format("--time {} is not above 0", *seconds_));
  if (!settle_seconds_) settle_seconds_ = quick ? 0 : 2;
  if (join_size_.empty()) join_size_ = quick ? "1GiB" : "64GiB";
  join_bytes_ = bytes_from(join_size_);
  for (const std::string& size : block_sizes_) {
    const std::uint64_t bytes = size == "0" ? 0 : bytes_from(size);
    if (bytes % sizeof(std::uint64_t) != 0) {
      throw ConfigError(fmt::format("--block-size {} is not a multiple of 8", size));
    }
    shapes_.push_back({.num_chunks = bytes == 0 ? num_chunks_ : num_chunks_ / kQuarter,
                       .block_bytes = bytes,
                       .seed = options.seed});
  }
  num_warm_up_ = options.warm_up_rounds();
  num_rounds_ = options.rounds(kShareRounds, kQuickShareRounds);
}

EngineCrew::Progress Share::run_round(const SharedWorkShape& shape, Company company,
                                      Verifier& verifier) const {
  std::vector<fs::path> tiers(company == Company::kOne ? 1 : 2, tier_path(0));
  if (company == Company::kTwoApart) tiers[1] = tier_path(1);
  SharedWorkShape work = shape;
  if (company == Company::kTwoOfOwnPrompts) work.num_parts = 2;
  EngineCrew crew(work, tiers);
  // Wait until the tier is full, its content has been replaced once, and each engine has its part.
  crew.await_steps(2 * std::uint64_t{shape.num_prompts()});
  static_cast<void>(crew.watch(seconds(*settle_seconds_)));
  if (company == Company::kOneBesideStopped) crew.stop(1);
  const auto done = crew.watch(seconds(*seconds_));
  verifier.check_count(crew.end() ? tiers.size() : 0, tiers.size(), "engines that ended well");
  return done;
}

std::vector<ShareRow> Share::measure_work(Bench& bench, const SharedWorkShape& shape) const {
  bench.progress.begin_row("engines at work", kKinds.size());
  std::array<std::vector<double>, kKinds.size()> steps;
  std::array<EngineCrew::Progress, kKinds.size()> sums;
  const std::uint32_t total = num_warm_up_ + num_rounds_;
  const std::uint64_t wrong_before = bench.verifier.num_mismatches();
  for (std::uint32_t round = 0; round < total; ++round) {
    bench.progress.round(round, total);
    static_cast<void>(bench.verifier.next_round());
    for (std::size_t kind = 0; kind < kKinds.size(); ++kind) {
      const auto done = run_round(shape, kKinds[kind].company, bench.verifier);
      if (round < num_warm_up_) continue;
      steps[kind].push_back(static_cast<double>(done.num_steps));
      sums[kind].num_steps += done.num_steps;
      sums[kind].num_found += done.num_found;
    }
  }
  std::vector<ShareRow> rows;
  for (std::size_t kind = 0; kind < kKinds.size(); ++kind) {
    std::vector<double> over_one;
    for (std::size_t i = 0; i < num_rounds_; ++i) over_one.push_back(steps[kind][i] / steps[0][i]);
    ShareRow& row = rows.emplace_back();
    row.what = kKinds[kind].what;
    if (shape.block_bytes > 0) row.block_bytes = shape.block_bytes;
    row.rounds = num_rounds_;
    row.steps_per_ms = median(steps[kind]) / *seconds_ / 1000;
    if (kKinds[kind].company != Company::kOne) row.over_one = median(over_one);
    row.hit_percent = 100.0 * static_cast<double>(sums[kind].num_found) /
                      static_cast<double>(sums[kind].num_steps * SharedWorkShape::kPromptBlocks);
    row.goal = kKinds[kind].goal;
    row.verified = bench.verifier.num_mismatches() == wrong_before;
  }
  return rows;
}

std::vector<ShareRow> Share::measure_joins(Bench& bench) const {
  bench.progress.begin_row("joins", 2);
  const cpu_tier::SharedTierOptions options{.path = tier_path(0), .capacity_bytes = join_bytes_};
  const cpu_tier::TierShape shape = cpu_tier::shape_for(options);
  Samples makes;
  Samples joins;
  Samples tables;
  std::optional<SharedEngine> first;
  std::optional<SharedEngine> second;
  const auto join = [&](std::optional<SharedEngine>& engine, const char* name, bool counts,
                        Samples& times) {
    engine.reset();
    std::unique_ptr<cpu_tier::JoinedTier> joined;
    const auto joining = time_once([&] { joined = SharedEngine::join(options, name); });
    const auto growing = time_once(
        [&] { engine.emplace(std::move(joined), shape.max_chunk_slots, cpu_tier::TierOptions()); });
    if (!counts) return;
    times.add(joining);
    tables.add(growing);
  };
  const std::uint32_t total = num_warm_up_ + num_rounds_;
  for (std::uint32_t round = 0; round < total; ++round) {
    bench.progress.round(round, total);
    const bool counts = round >= num_warm_up_;
    join(first, "first", counts, makes);
    for (std::uint32_t i = 0; i < kJoins; ++i) join(second, "second", counts, joins);
    // The last member to leave removes the file.
    second.reset();
    first.reset();
  }
  std::vector<ShareRow> rows;
  for (const auto& [what, times] :
       {std::pair{"making a tier of ", &makes}, std::pair{"joining a tier of ", &joins},
        std::pair{"an instance's own tables for ", &tables}}) {
    ShareRow& row = rows.emplace_back();
    row.what = what + bytes_text(join_bytes_);
    row.rounds = static_cast<std::uint32_t>(times->size());
    row.ms_p50 = times->percentile_us(0.5) / 1000;
    row.ms_p99 = times->percentile_us(0.99) / 1000;
    if (times == &joins) row.goal = kGoalOfJoinMs;
    row.verified = true;
  }
  return rows;
}

void Share::run(Bench& bench, Report& report) {
  bench.progress.expect(shapes_.size() * kKinds.size() + 2);
  // This comes before the joins: a process with threads must not be forked.
  for (const SharedWorkShape& shape : shapes_) {
    static_cast<void>(
        bench.rows.step<ShareRow>(fmt::format("engines at work, {} B a block", shape.block_bytes),
                                  [&] { return measure_work(bench, shape); }));
  }
  static_cast<void>(bench.rows.step<ShareRow>("joins", [&] { return measure_joins(bench); }));
  report.verified =
      "every engine ended normally, and every block that was loaded was the right "
      "one";
  report.notes.push_back(
      fmt::format("A step looks up a prompt of {} blocks, leases and loads what the tier has, "
                  "and stores the rest. The tier holds half of the prompts. Without a block "
                  "size no blocks are copied: the engines only change the tier's metadata. Two "
                  "engines with a tier each show what this machine's cores and memory can do "
                  "at once. Two engines with half of the prompts each share the tier but no "
                  "block, as behind a router that sends a prompt to the engine where it was "
                  "before, or with a model each.",
                  SharedWorkShape::kPromptBlocks));
  note_debug_build(report);
}

}  // namespace

std::unique_ptr<Subcommand> make_share() { return std::make_unique<Share>(); }

}  // namespace kvferry::bench
