// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/connector/scheduler_engine.hpp"
#include "kvferry/connector/step_report.hpp"

#include <cstdint>
#include <optional>
#include <vector>

namespace kvferry::connector {

/// What the ranks said of themselves, compared with what the scheduler side was told (G8).
class RankRegister {
 public:
  explicit RankRegister(const SchedulerOptions& expected)
      : expected_(expected), ranks_(expected.world_size) {}

  /// Throws TopologyError naming both sides if the report's rank or topology is not the expected
  /// one; else takes its topology, if any, over.
  void take(const StepReport& report);

  [[nodiscard]] std::uint32_t num_ready() const { return num_ready_; }
  [[nodiscard]] bool all_ready() const { return num_ready_ == ranks_.size(); }
  /// The smallest arena and the smallest ring of all ranks; once all_ready().
  [[nodiscard]] std::uint32_t least_slots() const;
  [[nodiscard]] std::uint32_t least_ring_blocks() const;

 private:
  const SchedulerOptions& expected_;
  std::vector<std::optional<RankTopology>> ranks_;
  std::uint32_t num_ready_ = 0;
};

}  // namespace kvferry::connector
