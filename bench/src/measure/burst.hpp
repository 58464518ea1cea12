// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/transfer/transfer_engine.hpp"

#include "measure/pipeline_rig.hpp"
#include "measure/samples.hpp"

#include <chrono>
#include <cstdint>
#include <vector>

namespace kvferry::bench {

/// What plans cost, whoever submitted them.
struct PlanTimes {
  Samples submit;      ///< Of the engine's thread, for one plan of one direction.
  Samples submit_cpu;  ///< The same, its processor time.
  Samples queue;       ///< From the submission to the first copy.
  Samples device;      ///< By the device's events: the plan's copies, without gaps between them.
};

/// Takes note of ends. Throws DeviceError if a transfer did not end well.
void add_ends(const std::vector<transfer::Completion>& ends, PlanTimes& times);

/// A wait for the engine to be idle has failed. Throws DeviceError if the device was lost, else
/// TimeoutError.
[[noreturn]] void throw_not_idle(const transfer::TransferEngine& engine);

/// Submits every plan of the rig once, as fast as the transfer component takes them, and waits for
/// the last end. Returns the time from the first submission to that, by the host's clock: it
/// includes all that a user waits for. Adds to `times`; a store that the ring took in parts has
/// the sum of them as its submit time. Throws DeviceError or TimeoutError.
[[nodiscard]] std::chrono::nanoseconds run_burst(PipelineRig& rig, transfer::TransferEngine& engine,
                                                 std::uint64_t first_transfer, PlanTimes& times);

}  // namespace kvferry::bench
