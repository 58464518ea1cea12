// SPDX-License-Identifier: Apache-2.0
#include "kvferry/base/error.hpp"
#include "kvferry/cpu_tier/memory/memory_budget.hpp"

#include "lab_subcommands.hpp"
#include "options/sizes.hpp"
#include "pin/pin_measurement.hpp"
#include "progress.hpp"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

namespace kvferry::bench {
namespace {

using Words = std::vector<std::string>;

// Single rounds on a shared machine vary fourfold.
constexpr std::uint32_t kPinRounds = 15;
constexpr std::uint32_t kQuickPinRounds = 3;
// Large enough that the start of a thread does not count, if the machine has that much memory.
constexpr std::uint64_t kFullBytes = 2 * kGiB;
constexpr std::uint64_t kQuickBytes = 256 * kMiB;
constexpr std::uint32_t kMaxThreads = 1024;

/// 1, 2, 4, ... threads, and as many as the machine has processors.
std::vector<std::uint32_t> usual_threads() {
  const std::uint32_t most = std::clamp(std::thread::hardware_concurrency(), 1U, kMaxThreads);
  std::vector<std::uint32_t> threads;
  for (std::uint32_t some = 1; some < most; some *= 2) threads.push_back(some);
  threads.push_back(most);
  return threads;
}

/// `most`, but at most a quarter of the memory that this machine still has to give.
std::uint64_t affordable_bytes(std::uint64_t most, std::uint64_t huge_page) {
  return std::max(
             std::min(most, cpu_tier::room_bytes(cpu_tier::read_memory_limits()) / 4) / huge_page,
             std::uint64_t{1}) *
         huge_page;
}

/// Measures how long it takes to get pinned memory.
class Pin final : public Subcommand {
 public:
  [[nodiscard]] const char* name() const override { return "pin"; }
  [[nodiscard]] const char* summary() const override {
    return "seconds that it takes to get pinned memory, for each kind of page, number "
           "of threads and size of a registration; compares the product's arena with a "
           "bare populate";
  }

  void add_options(CLI::App& app) override {
    const auto list = [&app](const char* flag, auto& target, const char* help) {
      return app.add_option(flag, target, help)->delimiter(',');
    };
    app.add_option("--size", size_,
                   "bytes to pin, in whole huge pages [2GiB, or a quarter of the available "
                   "memory; quick: 256MiB]")
        ->type_name("SIZE");
    list("--pages", pages_,
         "normal, transparent (huge where the kernel has some), huge (from the "
         "machine's pool)")
        ->capture_default_str();
    list("--threads", threads_, "threads that populate [1, 2, 4 ... one for each processor]")
        ->check(CLI::Range(1U, kMaxThreads));
    list("--piece", pieces_, "bytes of one registration; whole registers everything at once")
        ->type_name("SIZE")
        ->capture_default_str();
    app.add_flag("!--no-arena", arena_, "leave out the rows of the product's own arena");
  }

  void check_options(const CommonOptions& options) override;
  void run(Bench& bench, Report& report) override;

 private:
  std::string size_;
  Words pages_ = {"normal", "transparent", "huge"};
  std::vector<std::uint32_t> threads_;
  Words pieces_ = {"64MiB", "whole"};
  bool arena_ = true;
  std::uint64_t bytes_ = 0;
  std::vector<PinShape> shapes_;
  RoundCounts rounds_;
};

void Pin::check_options(const CommonOptions& options) {
  const bool quick = options.effort == Effort::kQuick;
  const std::uint64_t huge_page = cpu_tier::huge_page_pool().page_bytes;
  bytes_ = size_.empty() ? affordable_bytes(quick ? kQuickBytes : kFullBytes, huge_page)
                         : bytes_from(size_);
  if (bytes_ % huge_page != 0) {
    throw ConfigError(fmt::format("--size {} is not a multiple of a huge page, {}", size_,
                                  bytes_text(huge_page)));
  }
  if (threads_.empty()) threads_ = usual_threads();
  rounds_ = {options.warm_up_rounds(), options.rounds(kPinRounds, kQuickPinRounds)};
  std::vector<std::uint64_t> pieces;
  for (const std::string& text : pieces_) {
    const std::uint64_t piece = std::min(bytes_, text == "whole" ? bytes_ : bytes_from(text));
    if (piece % huge_page != 0) {
      throw ConfigError(fmt::format("--piece {} is not a multiple of a huge page, {}", text,
                                    bytes_text(huge_page)));
    }
    // Two piece sizes that were both cut to the same value make one row.
    if (std::find(pieces.begin(), pieces.end(), piece) == pieces.end()) pieces.push_back(piece);
  }
  for (const std::string& pages : pages_) {
    const cpu_tier::PageKind kind = cpu_tier::page_kind_from(pages);
    for (const std::uint32_t threads : threads_) {
      shapes_.push_back(
          {kind, threads, bytes_, pieces, arena_ ? PinArena::kIncluded : PinArena::kLeftOut});
    }
  }
}

void Pin::run(Bench& bench, Report& report) {
  cpu_tier::check_memory_budget(bytes_);
  const cpu_tier::HugePagePool pool = cpu_tier::huge_page_pool();
  const bool pool_has_it = pool.free_bytes() >= bytes_;
  if (!pool_has_it) {
    const auto skipped = std::erase_if(
        shapes_, [](const PinShape& shape) { return shape.pages == cpu_tier::PageKind::kPool; });
    if (skipped > 0) {
      report.notes.push_back(
          fmt::format("There are no rows for huge pages of the pool: {} of {} pages are free. sudo "
                      "sysctl vm.nr_hugepages={} reserves as many as needed.",
                      pool.num_free, bytes_text(pool.page_bytes), bytes_ / pool.page_bytes));
    }
  }
  bench.progress.expect(shapes_.size());
  for (const PinShape& shape : shapes_) {
    const auto name = fmt::format("{} pages, {} threads", to_string(shape.pages), shape.threads);
    bench.progress.begin_row(name);
    static_cast<void>(bench.rows.step<PinRow>(name, [&] {
      return measure_pin(
          bench.device, shape, rounds_, bench.verifier,
          [&](std::uint32_t done, std::uint32_t of) { bench.progress.round(done, of); });
    }));
  }
  if (bench.device.kind() == gpu::BackendKind::kHost) {
    report.notes.emplace_back(
        "The host back end pins nothing. Its registrations cost nothing, but those "
        "of a GPU do.");
  }
}

}  // namespace

std::unique_ptr<Subcommand> make_pin() { return std::make_unique<Pin>(); }

}  // namespace kvferry::bench
