// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/transfer/transfer_engine.hpp"

#include "measure/burst.hpp"
#include "measure/co_run.hpp"
#include "measure/pipeline_rig.hpp"
#include "measure/samples.hpp"

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

namespace kvferry::bench {

/// Iterations that are submitted before the device begins them. Engines with asynchronous
/// scheduling do the same: they submit the next step while one runs.
inline constexpr std::uint32_t kStepsAhead = 2;
/// Plans of loads that are under way at the same time.
inline constexpr std::uint32_t kLoadsUnderWay = 2;

/// The stream on which the other work runs.
enum class CoRunPlace : std::uint8_t {
  /// On the compute stream, like an engine's forward pass: gathers run between iterations, and the
  /// time of an iteration includes them.
  kCompute,
  /// On its own stream, at the same time as the gathers: kernels compete for multiprocessors.
  kOwn
};

/// Runs iterations of co-run work, one after the other. The host is at most kStepsAhead iterations
/// ahead of the device.
class CoRunLoop {
 public:
  /// Throws DeviceError.
  CoRunLoop(PipelineRig& rig, CoRunner& work, CoRunPlace place);

  /// Runs `count` iterations alone, and adds their times. Throws DeviceError.
  void run_alone(std::uint32_t count, Samples& iterations);
  /// Runs `count` iterations with a step's plans after each, and adds their times: as many stores
  /// as the ring takes, and kLoadsUnderWay plans of loads under way. Then waits until all transfers
  /// have ended. Throws DeviceError or TimeoutError.
  void run_beside(std::uint32_t count, transfer::TransferEngine& engine, Samples& iterations,
                  PlanTimes& plans);

  /// Rate at which bytes arrived during the iterations of the last run_beside().
  [[nodiscard]] double bytes_per_second() const { return bytes_per_second_; }
  /// For each plan of stores, the most blocks that were stored since the last forget().
  [[nodiscard]] const std::vector<std::uint32_t>& stored() const { return stored_; }
  /// Plans that were loaded since the last forget().
  [[nodiscard]] std::vector<std::uint32_t> loaded() const;
  /// Call this when new patterns are in place: then nothing counts as stored or loaded.
  void forget();

 private:
  class Steps;
  void iterate(std::uint32_t count, Samples& iterations, Steps* steps);

  PipelineRig& rig_;
  CoRunner& work_;
  const std::unique_ptr<gpu::Stream> own_;
  gpu::Stream& stream_;
  /// A ring of events for the ends of iterations.
  std::vector<std::unique_ptr<gpu::Event>> ends_;
  std::uint64_t next_transfer_ = 1;
  double bytes_per_second_ = 0;
  std::vector<std::uint32_t> stored_;
  std::vector<std::uint32_t> loaded_;
};

}  // namespace kvferry::bench
