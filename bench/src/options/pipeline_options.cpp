// SPDX-License-Identifier: Apache-2.0
#include "options/pipeline_options.hpp"

#include "kvferry/base/error.hpp"

#include "options/sizes.hpp"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <chrono>

namespace kvferry::bench {
namespace {

constexpr const char* kNothingBeside = "none";
constexpr const char* kPieceByLink = "auto";
constexpr const char* kDefaultShape = "64x8KiB";
// The rate of a real prefill. The slow-down at this rate has a goal of its own.
constexpr double kPrefillBytesPerSecond = 4e9;
constexpr std::uint32_t kFullRounds = 10;
constexpr std::uint32_t kQuickRounds = 3;
constexpr std::uint32_t kFullIterations = 400;
constexpr std::uint32_t kQuickIterations = 20;
constexpr std::chrono::microseconds kQuickLaunch{20};

enum class Beside : std::uint8_t { kNothing, kWork };

std::uint32_t value_or(std::uint32_t value, std::uint32_t otherwise) {
  return value == 0 ? otherwise : value;
}

PipelineShape shape_of(const PipelineOptions& options, const CommonOptions& common) {
  const bool quick = common.effort == Effort::kQuick;
  const auto of_model = block_shape(options.model);
  if (of_model && !options.fragments.empty()) {
    throw ConfigError("--model already says what --shape says: give one of them");
  }
  PipelineShape shape;
  shape.block =
      of_model ? *of_model
               : block_shape_from(options.fragments.empty() ? kDefaultShape : options.fragments);
  shape.blocks_per_plan = value_or(options.num_blocks, quick ? 32 : 512);
  shape.num_plans = value_or(options.num_plans, quick ? 4 : 8);
  shape.slots = placement_from(options.slots);
  shape.seed = common.seed;
  return shape;
}

transfer::TransferOptions transfer_from(const PipelineOptions& options,
                                        const PipelineShape& shape) {
  transfer::TransferOptions transfer;
  transfer.staging_bytes = options.ring.empty() ? 2 * shape.plan_bytes() : bytes_from(options.ring);
  if (!options.in_flight.empty()) transfer.max_in_flight_bytes = bytes_from(options.in_flight);
  if (!options.load_staging.empty()) transfer.load_staging_bytes = bytes_from(options.load_staging);
  if (!options.path.empty()) transfer.copy_path = gpu::copy_path_from(options.path);
  if (transfer.staging_bytes < shape.block.block_bytes()) {
    throw ConfigError("--ring holds not one block: make it " +
                      bytes_text(shape.block.block_bytes()) + " or more");
  }
  return transfer;
}

std::vector<std::optional<std::uint64_t>> pieces_of(const PipelineOptions& options) {
  if (options.pieces.empty()) return {std::nullopt};
  std::vector<std::optional<std::uint64_t>> pieces;
  for (const std::string& piece : options.pieces) {
    pieces.push_back(piece == kPieceByLink || piece == "0" ? std::nullopt
                                                           : std::optional(bytes_from(piece)));
  }
  return pieces;
}

// Piece sizes of one direction follow one another, because a sweep compares them.
std::vector<PipelineSubject> subjects_of(const PipelineOptions& options, Beside beside) {
  std::vector<PipelineSubject> subjects;
  const auto add = [&](Traffic traffic, std::optional<double> limit) {
    for (const auto& piece : pieces_of(options)) subjects.push_back({traffic, limit, piece});
  };
  for (const std::string& direction : options.directions) {
    const Traffic traffic = traffic_from(direction);
    const bool stores = traffic != Traffic::kHostToDevice;
    if (!options.limit.empty()) {
      add(traffic, stores ? std::optional(rate_from(options.limit)) : std::nullopt);
      continue;
    }
    add(traffic, std::nullopt);
    if (stores && beside == Beside::kWork) add(traffic, kPrefillBytesPerSecond);
  }
  return subjects;
}

CoRunPlace place_of(const PipelineOptions& options) {
  if (options.place == "compute") return CoRunPlace::kCompute;
  if (options.place == "own") return CoRunPlace::kOwn;
  throw ConfigError("--co-run-place is compute or own, not '" + options.place + "'");
}

CoRunOptions work_of(const PipelineOptions& options, bool quick) {
  const double iteration_ms = options.iteration_ms == 0 ? (quick ? 1 : 4) : options.iteration_ms;
  CoRunOptions work;
  work.iteration = std::chrono::duration_cast<std::chrono::nanoseconds>(
      std::chrono::duration<double, std::milli>(iteration_ms));
  if (quick) {
    work.launch = kQuickLaunch;
    work.buffer_bytes = 8 * kMiB;
  }
  return work;
}

void refuse_contradictions(const PipelineSettings& settings, const CommonOptions& common) {
  const bool verifies = settings.verify == transfer::Verification::kAll;
  if (verifies && !settings.co_run.empty()) {
    throw ConfigError("--verify all compares rows without other work: leave out --co-run");
  }
  if (settings.inject == 0) return;
  if (!verifies) throw ConfigError("--inject checks what tags find: add --verify all");
  if (common.device_choice().kind != gpu::BackendKind::kHost) {
    throw ConfigError("--inject needs the simulated link of the host back end: add --device host");
  }
}

}  // namespace

void add_pipeline_options(CLI::App& app, PipelineOptions& options) {
  app.add_option("--fragments,--shape", options.fragments,
                 "shape of a block: 64x8KiB is 64 fragments of 8 KiB, 1x2MiB is one piece "
                 "[64x8KiB]")
      ->type_name("SHAPE");
  add_model_options(app, options.model);
  app.add_option("--blocks", options.num_blocks, "blocks of the plan of a step [512; quick: 32]")
      ->check(CLI::PositiveNumber);
  app.add_option("--plans", options.num_plans,
                 "plans of a round, each with different blocks [8; quick: 4]")
      ->check(CLI::PositiveNumber);
  app.add_option("--direction", options.directions, "store (d2h), load (h2d), both")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--slots", options.slots,
                 "placement of a plan's slots in the arena: contiguous, shuffled, runs:8")
      ->capture_default_str();
  app.add_option("--ring", options.ring, "bytes of the staging ring [two plans]")
      ->type_name("SIZE");
  app.add_option("--piece", options.pieces,
                 "bytes of one submission; auto,8MiB,32MiB makes rows for each; auto goes by "
                 "the link, as in the product [auto]")
      ->type_name("SIZE")
      ->delimiter(',');
  app.add_option("--in-flight", options.in_flight,
                 "most bytes submitted at a time per direction [32MiB, or two pieces]")
      ->type_name("SIZE");
  app.add_option("--load-staging", options.load_staging,
                 "bytes of device memory for loads that are staged [32MiB, or two pieces]")
      ->type_name("SIZE");
  app.add_option("--path", options.path,
                 "copy path of loads: per_run, batch, kernel, staged [as the device's table "
                 "says]");
  app.add_option("--store-bandwidth-limit", options.limit,
                 "limit of the rate of stores, for example 4GB/s [none; with --co-run: none "
                 "and 4GB/s]")
      ->type_name("RATE");
  app.add_option("--co-run", options.co_run,
                 "work that runs beside the transfers: none; gemm: bound by arithmetic "
                 "(multiply-adds in registers, no tensor cores); stream: bound by device "
                 "memory")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--co-run-place", options.place,
                 "where that work runs: compute: on the compute stream, with the gathers "
                 "between its iterations; own: on a stream of its own, beside the gathers")
      ->capture_default_str();
  app.add_option("--iteration-ms", options.iteration_ms,
                 "length of one iteration of the co-run work when it runs alone, in ms [4; "
                 "quick: 1]")
      ->check(CLI::PositiveNumber);
  app.add_option("--iterations", options.num_iterations,
                 "iterations of the co-run work [400; quick: 20]")
      ->check(CLI::Range(4, 1000000));
  app.add_option("--verify", options.verify,
                 "off: blocks have no tags; all: every block gets a tag and every load checks it, "
                 "by turns with rounds without tags")
      ->check(CLI::IsMember({"off", "all"}))
      ->capture_default_str();
  app.add_option(
         "--inject", options.inject,
         "with --verify all, on the host back end: also damage blocks on purpose, each with "
         "this chance, and compare what the tags find with what was damaged [0]")
      ->check(CLI::Range(0.0, 1.0));
}

std::string pipeline_path(const PipelineSettings& settings) {
  return settings.path.empty() ? "pipeline" : "pipeline:" + settings.path;
}

transfer::TransferOptions transfer_options(const PipelineSettings& settings,
                                           const PipelineSubject& subject) {
  transfer::TransferOptions options = settings.transfer;
  if (subject.limit) options.store_bandwidth_limit = static_cast<std::uint64_t>(*subject.limit);
  if (!subject.piece_bytes) return options;
  options.piece_bytes = *subject.piece_bytes;
  const std::uint64_t two = 2 * *subject.piece_bytes;
  if (settings.in_flight_by_piece) {
    options.max_in_flight_bytes = std::max(options.max_in_flight_bytes, two);
  }
  if (settings.load_staging_by_piece) {
    options.load_staging_bytes = std::max(options.load_staging_bytes, two);
  }
  return options;
}

PipelineSettings pipeline_settings(const PipelineOptions& options, const CommonOptions& common) {
  const bool quick = common.effort == Effort::kQuick;
  PipelineSettings settings;
  settings.shape = shape_of(options, common);
  settings.model_text = model_text(options.model);
  settings.transfer = transfer_from(options, settings.shape);
  settings.in_flight_by_piece = options.in_flight.empty();
  settings.load_staging_by_piece = options.load_staging.empty();
  settings.path = options.path;
  settings.rounds = {common.warm_up_rounds(), common.rounds(kFullRounds, kQuickRounds)};
  settings.beside = subjects_of(options, Beside::kWork);
  for (const std::string& kind : options.co_run) {
    if (kind == kNothingBeside) {
      settings.alone = subjects_of(options, Beside::kNothing);
    } else {
      settings.co_run.push_back(co_run_kind_from(kind));
    }
  }
  settings.place = place_of(options);
  settings.work = work_of(options, quick);
  settings.num_iterations =
      value_or(options.num_iterations, quick ? kQuickIterations : kFullIterations);
  settings.inject = options.inject;
  if (options.verify == "all") settings.verify = transfer::Verification::kAll;
  refuse_contradictions(settings, common);
  return settings;
}

}  // namespace kvferry::bench
