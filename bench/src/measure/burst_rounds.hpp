// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/transfer/transfer_engine.hpp"

#include "measure/burst.hpp"
#include "measure/pipeline_rig.hpp"
#include "measure/samples.hpp"
#include "measure/verifier.hpp"

#include <cstdint>

namespace kvferry::bench {

/// Rounds of bursts with one transfer engine, each verified byte by byte.
class BurstRounds {
 public:
  enum class Counts : std::uint8_t { kNo, kYes };

  /// The rig outlives this object. Throws ConfigError, ResourceError or DeviceError.
  BurstRounds(PipelineRig& rig, const transfer::TransferOptions& options);

  /// Runs a round. `tagger`: stores what the round loads, so that it has tags; null: it has none.
  /// Throws DeviceError or TimeoutError.
  void run(Counts counts, transfer::TransferEngine* tagger, Verifier& verifier);

  [[nodiscard]] transfer::TransferEngine& engine() { return engine_; }
  /// The times of the rounds that count.
  [[nodiscard]] Samples& rounds() { return rounds_; }
  [[nodiscard]] PlanTimes& times() { return times_; }
  /// Blocks that were loaded, in rounds that count or not.
  [[nodiscard]] std::uint64_t num_loaded() const { return num_loaded_; }
  [[nodiscard]] std::uint64_t num_damaged() const {
    return times_.num_damaged + not_counted_.num_damaged;
  }

 private:
  PipelineRig& rig_;
  transfer::TransferEngine engine_;
  std::uint64_t next_transfer_ = 1;
  std::uint64_t num_loaded_ = 0;
  Samples rounds_;
  PlanTimes times_;
  PlanTimes not_counted_;
};

}  // namespace kvferry::bench
