// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/transfer/transfer_engine.hpp"

#include "measure/pipeline_rig.hpp"
#include "measure/samples.hpp"

#include <chrono>
#include <cstdint>
#include <vector>

namespace kvferry::bench {

/// The times of plans.
struct PlanTimes {
  Samples submit;      ///< Time of the engine's thread for one plan of one direction.
  Samples submit_cpu;  ///< The same, its processor time.
  Samples queue;       ///< From the submission to the first copy.
  Samples device;      ///< By the device's events: the plan's copies, without gaps.
};

/// Records the ends of transfers. Throws DeviceError if a transfer failed.
void add_ends(const std::vector<transfer::Completion>& ends, PlanTimes& times);

/// Call this if a wait for the idle engine failed. Throws DeviceError if the device was lost, else
/// TimeoutError.
[[noreturn]] void throw_not_idle(const transfer::TransferEngine& engine);

/// Submits every plan of the rig once, as fast as the transfer component takes them, and waits for
/// the last end. Returns the time from the first submission to the last end, by the host's clock,
/// which includes everything that a user waits for. Adds to `times`; the submit time of a store
/// that the ring took in parts is the sum over its parts. Throws DeviceError or TimeoutError.
[[nodiscard]] std::chrono::nanoseconds run_burst(PipelineRig& rig, transfer::TransferEngine& engine,
                                                 std::uint64_t first_transfer, PlanTimes& times);

}  // namespace kvferry::bench
