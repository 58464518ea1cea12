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

/// The options of `pipeline`, with their defaults. The help says what empty and 0 mean.
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
  std::string verify = "off";
  double inject = 0;
};

/// Adds the options to `app`; `options` outlives `app`.
void add_pipeline_options(CLI::App& app, PipelineOptions& options);

/// The subject of a row, besides the shape that all rows have.
struct PipelineSubject {
  Traffic traffic = Traffic::kBoth;
  std::optional<double> limit;  ///< Limit of stores, in bytes per second.
  std::optional<std::uint64_t>
      piece_bytes;  ///< Bytes of one submission; unset: chosen by the link.
};

/// The meaning of the options.
struct PipelineSettings {
  PipelineShape shape;
  /// Without the settings of a subject; transfer_options() combines both.
  transfer::TransferOptions transfer;
  /// Whether bytes in flight, and the staging of loads, follow from the piece size.
  bool in_flight_by_piece = true;
  bool load_staging_by_piece = true;
  RoundCounts rounds;
  /// Rows without other work; empty: none.
  std::vector<PipelineSubject> alone;
  /// Rows with each kind of `co_run` at the same time.
  std::vector<PipelineSubject> beside;
  std::vector<gpu::CoRunKind> co_run;
  CoRunOptions work;
  CoRunPlace place = CoRunPlace::kCompute;
  std::uint32_t num_iterations = 0;
  /// Whether each row compares blocks with tags and blocks without.
  transfer::Verification verify = transfer::Verification::kOff;
  /// Chance that a block is damaged in the check of tags; 0: there is no such check.
  double inject = 0;
  /// The forced path of loads; unset: by the device's table.
  std::string path;
  /// A text that names the model of the blocks; empty: no model.
  std::string model_text;
};

/// "pipeline", or for example "pipeline:batch" if the path of loads is forced.
[[nodiscard]] std::string pipeline_path(const PipelineSettings& settings);

/// The options of the transfer component for a row of this subject. Two pieces fit in flight and
/// into the staging of loads, unless the command line says otherwise, because with one piece the
/// link would wait for each.
[[nodiscard]] transfer::TransferOptions transfer_options(const PipelineSettings& settings,
                                                         const PipelineSubject& subject);

/// Throws ConfigError.
[[nodiscard]] PipelineSettings pipeline_settings(const PipelineOptions& options,
                                                 const CommonOptions& common);

}  // namespace kvferry::bench
