// SPDX-License-Identifier: Apache-2.0
#include "kvferry/base/error.hpp"

#include "lab_subcommands.hpp"
#include "meta/meta_rows.hpp"
#include "options/sizes.hpp"
#include "progress.hpp"

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace kvferry::bench {
namespace {

using Words = std::vector<std::string>;

constexpr std::uint32_t kMetaRounds = 100;
constexpr std::uint32_t kQuickMetaRounds = 3;

Temperature temperature_from(std::string_view text) {
  if (text == "warm") return Temperature::kWarm;
  if (text == "cold") return Temperature::kCold;
  throw ConfigError(fmt::format("--caches {} is unknown: write warm or cold", text));
}

Tenancy tenancy_from(std::string_view text) {
  if (text == "private") return Tenancy::kPrivate;
  if (text == "shared") return Tenancy::kShared;
  throw ConfigError(fmt::format("--tier {} is unknown: write private or shared", text));
}

/// Measures what the metadata costs the scheduler for each block.
class Meta final : public Subcommand {
 public:
  [[nodiscard]] const char* name() const override { return "meta"; }
  [[nodiscard]] const char* summary() const override {
    return "cost of the CPU tier's metadata in nanoseconds per block, compared with a "
           "bare hash table";
  }
  [[nodiscard]] bool uses_device() const override { return false; }

  void add_options(CLI::App& app) override {
    const auto list = [&app](const char* flag, auto& target, const char* help) {
      return app.add_option(flag, target, help)->delimiter(',');
    };
    list("--op", operations_,
         "lookup, lookup-absent, prefix, store (reserve with eviction and commit), lease (and "
         "release), reserve-free, touch, offer-absent, offer-held")
        ->capture_default_str();
    list("--resident", residents_, "readable blocks in the tier [500000,16384; quick: 16384]")
        ->check(CLI::Range(1U, 1U << 30));
    list("--batch", batches_, "blocks of a call; a request of 128k tokens has 8192 [32,8192]")
        ->check(CLI::Range(1U, 1U << 24));
    list("--caches", temperatures_,
         "warm (the blocks were looked up just before) and cold (other memory was "
         "read before)")
        ->capture_default_str();
    list("--tier", tiers_,
         "private, or shared: in a file that other engines could share, although none "
         "does")
        ->capture_default_str();
    app.add_option("--eviction", eviction_, "lru, arc, adaptive; adaptive is the connector's")
        ->capture_default_str();
    app.add_option("--admission", admission_, "always, second_offer, adaptive")
        ->capture_default_str();
    app.add_option("--prefix", prefix_,
                   "blocks in neighbouring slots that are evicted together, for example the 512 "
                   "of a prefill step of 8192 tokens; 1 is the worst case")
        ->check(CLI::Range(1U, 1U << 24))
        ->capture_default_str();
    app.add_option("--sweep", sweep_, "bytes of other memory to read before a cold round")
        ->capture_default_str();
  }

  void check_options(const CommonOptions& options) override;
  void run(Bench& bench, Report& report) override;

 private:
  struct Case {
    std::string operation;
    MetaShape shape;
    Temperature temperature = Temperature::kWarm;
  };

  Words operations_ = {"lookup", "lookup-absent", "prefix", "store", "lease"};
  std::vector<std::uint32_t> residents_;
  std::vector<std::uint32_t> batches_ = {32, 8192};
  Words temperatures_ = {"warm", "cold"};
  Words tiers_ = {"private"};
  std::string eviction_ = "lru";
  std::string admission_ = "always";
  std::uint32_t prefix_ = 512;
  // Twice the last-level cache of most processors: a core complex of AMD's has 32 MiB.
  std::string sweep_ = "64MiB";
  std::vector<Case> cases_;
  RoundCounts rounds_;
  std::uint64_t sweep_bytes_ = 0;
};

void Meta::check_options(const CommonOptions& options) {
  const bool quick = options.effort == Effort::kQuick;
  if (residents_.empty()) {
    residents_ =
        quick ? std::vector<std::uint32_t>{16384} : std::vector<std::uint32_t>{500000, 16384};
  }
  rounds_ = {options.warm_up_rounds(), options.rounds(kMetaRounds, kQuickMetaRounds)};
  sweep_bytes_ = sweep_ == "0" ? 0 : bytes_from(sweep_);
  MetaShape shape;
  shape.prefix = prefix_;
  shape.seed = options.seed;
  shape.policy.eviction = cpu_tier::eviction_from(eviction_);
  shape.policy.admission = cpu_tier::admission_from(admission_);
  const auto known = MetaOperation::names();
  for (const std::string& operation : operations_) {
    if (std::find(known.begin(), known.end(), operation) == known.end()) {
      throw ConfigError(fmt::format("'{}' is not an operation: write one of {}", operation,
                                    fmt::join(known, ", ")));
    }
    for (const std::uint32_t resident : residents_) {
      for (const std::uint32_t batch : batches_) {
        if (batch > resident) {
          throw ConfigError(fmt::format("--batch {} is more than --resident {}", batch, resident));
        }
        shape.num_resident = resident;
        shape.batch = batch;
        for (const std::string& caches : temperatures_) {
          // The tiers take turns: a shared tier's cost is compared with the row before it.
          for (const std::string& tier : tiers_) {
            shape.tenancy = tenancy_from(tier);
            cases_.push_back({operation, shape, temperature_from(caches)});
          }
        }
      }
    }
  }
}

void Meta::run(Bench& bench, Report& report) {
  bench.progress.expect(cases_.size());
  CacheSweep sweep(sweep_bytes_);
  for (const Case& one : cases_) {
    bench.progress.begin_row(fmt::format("{} of {} blocks", one.operation, one.shape.batch));
    const auto name =
        fmt::format("{}, {} of {}, {}, {}", one.operation, one.shape.batch, one.shape.num_resident,
                    one.temperature == Temperature::kWarm ? "warm" : "cold",
                    one.shape.tenancy == Tenancy::kShared ? "shared" : "private");
    static_cast<void>(bench.rows.step<MetaRow>(name, [&] {
      const auto operation = make_meta_operation(one.operation, one.shape);
      return measure_meta(
          *operation, one.temperature, sweep, rounds_, bench.verifier,
          [&](std::uint32_t done, std::uint32_t of) { bench.progress.round(done, of); });
    }));
  }
  report.notes.emplace_back(
      "The times are of one thread and include the lock. The bare table has no "
      "states, no order of eviction and no lock. It finds the same keys, or erases "
      "and inserts as many. Compare ratios, because other work on this machine "
      "takes caches and memory bandwidth from both.");
  note_debug_build(report);
}

}  // namespace

std::unique_ptr<Subcommand> make_meta() { return std::make_unique<Meta>(); }

}  // namespace kvferry::bench
