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

/// Iterations that are submitted before the device begins them. As engines with asynchronous
/// scheduling: the next step is submitted while one runs.
inline constexpr std::uint32_t kStepsAhead = 2;
/// Plans of loads.
inline constexpr std::uint32_t kLoadsUnderWay = 2;

/// Where the work beside the copies runs.
enum class CoRunPlace : std::uint8_t {
  /// On the compute stream, as an engine's forward pass: gathers run between iterations, and an
  /// iteration's time includes them.
  kCompute,
  /// On a stream of its own, beside the gathers: kernels compete for multiprocessors.
  kOwn
};

/// Iterations of co-run work, one after the other; the host is at most kStepsAhead of the device.
class CoRunLoop {
 public:
  /// Throws DeviceError.
  CoRunLoop(PipelineRig& rig, CoRunner& work, CoRunPlace place);

  /// Adds the times of `count` iterations with nothing beside them. Throws DeviceError.
  void run_alone(std::uint32_t count, Samples& iterations);
  /// Adds those of `count` iterations with a step's plans after each: as many stores as the ring
  /// takes, and kLoadsUnderWay plans of loads under way. Then waits until all transfers ended.
  /// Throws DeviceError or TimeoutError.
  void run_beside(std::uint32_t count, transfer::TransferEngine& engine, Samples& iterations,
                  PlanTimes& plans);

  /// Bytes that arrived while run_beside() iterated, and for how long, of the last call.
  [[nodiscard]] double bytes_per_second() const { return bytes_per_second_; }
  /// Of each plan of stores, the most blocks that were stored since the last forget().
  [[nodiscard]] const std::vector<std::uint32_t>& stored() const { return stored_; }
  /// Plans that were loaded since the last forget().
  [[nodiscard]] std::vector<std::uint32_t> loaded() const;
  /// New patterns are in place: nothing counts as stored or loaded.
  void forget();

 private:
  class Steps;
  void iterate(std::uint32_t count, Samples& iterations, Steps* steps);

  PipelineRig& rig_;
  CoRunner& work_;
  const std::unique_ptr<gpu::Stream> own_;
  gpu::Stream& stream_;
  /// Ends of iterations, in a ring.
  std::vector<std::unique_ptr<gpu::Event>> ends_;
  std::uint64_t next_transfer_ = 1;
  double bytes_per_second_ = 0;
  std::vector<std::uint32_t> stored_;
  std::vector<std::uint32_t> loaded_;
};

}  // namespace kvferry::bench
