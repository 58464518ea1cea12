// SPDX-License-Identifier: Apache-2.0
#include "options/copy_options.hpp"

#include "kvferry/base/error.hpp"

#include "options/sizes.hpp"

#include <CLI/CLI.hpp>

#include <algorithm>

namespace kvferry::bench {
namespace {

using Words = std::vector<std::string>;

constexpr std::uint32_t kFullRounds = 12;
constexpr std::uint32_t kQuickRounds = 3;

std::uint32_t sets_per_round(std::uint64_t round_bytes, std::uint64_t set_bytes) {
  return static_cast<std::uint32_t>(std::clamp<std::uint64_t>(round_bytes / set_bytes, 1, 4096));
}

/// The fragments to copy: those given, those of the model, or the default ones.
CopyOptions with_fragments(CopyOptions options, Effort effort) {
  const bool quick = effort == Effort::kQuick;
  const auto block = block_shape(options.model);
  if (!block && options.num_blocks != 0) throw ConfigError("--blocks needs --model");
  if (block) {
    if (!options.fragments.empty() || !options.counts.empty()) {
      throw ConfigError(
          "--model already says what --fragment and --count say: give either it or them");
    }
    const std::uint32_t num_blocks =
        options.num_blocks != 0 ? options.num_blocks : (quick ? 4U : 32U);
    options.fragments = {std::to_string(block->fragment_bytes)};
    options.counts = {num_blocks * block->num_fragments};
    return options;
  }
  if (options.fragments.empty()) {
    options.fragments =
        quick ? Words{"4KiB", "64KiB"} : Words{"1KiB",  "4KiB",   "8KiB",   "16KiB", "32KiB",
                                               "64KiB", "256KiB", "512KiB", "2MiB"};
  }
  if (options.counts.empty()) {
    options.counts =
        quick ? std::vector<std::uint32_t>{256} : std::vector<std::uint32_t>{512, 4096};
  }
  return options;
}

}  // namespace

void add_copy_options(CLI::App& app, CopyOptions& options) {
  const auto list = [&app](const char* flag, auto& target, const char* help) {
    return app.add_option(flag, target, help)->delimiter(',');
  };
  list("--path", options.paths, "per_run, batch, kernel, staged")->capture_default_str();
  list("--fragment", options.fragments,
       "bytes of a fragment [1KiB,4KiB,8KiB,16KiB,32KiB,64KiB,256KiB,512KiB,2MiB; quick: "
       "4KiB,64KiB]")
      ->type_name("SIZE");
  list("--count", options.counts, "fragments of a transfer [512,4096; quick: 256]")
      ->check(CLI::PositiveNumber);
  add_model_options(app, options.model);
  app.add_option("--blocks", options.num_blocks,
                 "with --model: blocks of a transfer, with all fragments of each [32; quick: "
                 "4]")
      ->check(CLI::PositiveNumber);
  list("--direction", options.directions, "h2d, d2h, both")->capture_default_str();
  list("--placement", options.placements,
       "placement of the fragments on the device: contiguous, shuffled, runs:8 (8 "
       "in a row); in host memory they lie packed")
      ->capture_default_str();
  app.add_option("--staged-piece", options.staged_piece,
                 "bytes that the staged path packs before it copies them")
      ->type_name("SIZE")
      ->capture_default_str();
  app.add_option("--max-set", options.max_set,
                 "bytes of a transfer; a larger one gets fewer fragments")
      ->type_name("SIZE")
      ->capture_default_str();
  app.add_option("--round-size", options.round_size,
                 "bytes of a round, in transfers of different fragments that run back to back "
                 "[64MiB; quick: 4MiB]")
      ->type_name("SIZE");
}

std::vector<CopyRowOptions> copy_rows(const CopyOptions& given, const CommonOptions& common) {
  const CopyOptions options = with_fragments(given, common.effort);
  const std::uint64_t max_set = bytes_from(options.max_set);
  const bool quick = common.effort == Effort::kQuick;
  const std::uint64_t round_bytes =
      bytes_from(!options.round_size.empty() ? options.round_size : (quick ? "4MiB" : "64MiB"));
  std::vector<CopyRowOptions> rows;
  for (const std::string& placement : options.placements) {
    for (const std::string& direction : options.directions) {
      for (const std::string& fragment : options.fragments) {
        CopyRowOptions row;
        row.traffic = traffic_from(direction);
        row.placement = placement_from(placement);
        row.fragment_bytes = bytes_from(fragment);
        row.staged_piece_bytes = bytes_from(options.staged_piece);
        row.rounds = {common.warm_up_rounds(), common.rounds(kFullRounds, kQuickRounds)};
        std::uint32_t last_count = 0;
        for (const std::uint32_t wanted : options.counts) {
          row.count = static_cast<std::uint32_t>(
              std::clamp<std::uint64_t>(max_set / row.fragment_bytes, 1, wanted));
          // Two counts that were both cut to the same value make one row.
          if (row.count == last_count) continue;
          last_count = row.count;
          row.num_sets = sets_per_round(round_bytes, row.fragment_bytes * row.count);
          for (const std::string& path : options.paths) {
            row.way.path = gpu::copy_path_from(path);
            rows.push_back(row);
          }
        }
      }
    }
  }
  return rows;
}

}  // namespace kvferry::bench
