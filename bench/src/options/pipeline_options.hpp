// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/gpu/copy_path.hpp"
#include "kvferry/transfer/transfer_engine.hpp"

#include "measure/co_run.hpp"
#include "measure/co_run_phase.hpp"
#include "measure/pipeline_rig.hpp"
#include "measure/row_measurement.hpp"
#include "measure/traffic.hpp"
#include "options/common_options.hpp"
#include "options/model_options.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace kvferry::bench {

/// What the command line of `pipeline` says, and by default. Empty and 0: as the help says.
struct PipelineOptions {
  std::string fragments = {};
  ModelOptions model;
  std::uint32_t num_blocks = 0;
  std::uint32_t num_plans = 0;
  std::vector<std::string> directions = {"store", "load", "both"};
  std::string slots = "contiguous";
  std::string ring = {};
  std::vector<std::string> pieces = {};
  std::string in_flight = {};
  std::string load_staging = {};
  std::string limit = {};
  std::string path = {};
  std::vector<std::string> co_run = {"none"};
  std::string place = "compute";
  double iteration_ms = 0;
  std::uint32_t num_iterations = 0;
};

/// Adds them to `app`; `options` outlives it.
void add_pipeline_options(CLI::App& app, PipelineOptions& options);

/// What a row is about, beside the shape that all have.
struct PipelineSubject {
  Traffic traffic = Traffic::kBoth;
  std::optional<double> limit;               ///< Of stores, bytes per second.
  std::optional<std::uint64_t> piece_bytes;  ///< Of one submission; empty: by link.
};

/// What they mean.
struct PipelineSettings {
  PipelineShape shape;
  /// But for what a subject says; transfer_options() has both.
  transfer::TransferOptions transfer;
  /// Whether the options leave bytes in flight and staging of loads to the piece.
  bool in_flight_by_piece = true;
  bool load_staging_by_piece = true;
  RoundCounts rounds;
  /// Rows with nothing beside them; empty: none.
  std::vector<PipelineSubject> alone;
  /// Rows beside each kind of `co_run`.
  std::vector<PipelineSubject> beside;
  std::vector<gpu::CoRunKind> co_run;
  CoRunOptions work;
  CoRunPlace place = CoRunPlace::kCompute;
  std::uint32_t num_iterations = 0;
  /// Of loads, forced; empty: as the device's table says.
  std::string path;
  /// Which model's blocks, in words; empty: no model's.
  std::string model_text;
};

/// "pipeline", or "pipeline:batch" where the path of loads is forced.
[[nodiscard]] std::string pipeline_path(const PipelineSettings& settings);

/// What a row of this subject gives the transfer component. Two pieces fit in flight and into the
/// staging of loads unless the command line says otherwise: with one the link would wait for each.
[[nodiscard]] transfer::TransferOptions transfer_options(const PipelineSettings& settings,
                                                         const PipelineSubject& subject);

/// Throws ConfigError.
[[nodiscard]] PipelineSettings pipeline_settings(const PipelineOptions& options,
                                                 const CommonOptions& common);

}  // namespace kvferry::bench
