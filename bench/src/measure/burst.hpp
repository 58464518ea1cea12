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
  Samples submit;                 ///< Time of the engine's thread for one plan of one direction.
  Samples submit_cpu;             ///< The same, its processor time.
  Samples queue;                  ///< From the submission to the first copy.
  Samples device;                 ///< By the device's events: the plan's copies, without gaps.
  std::uint64_t num_damaged = 0;  ///< Blocks that came back with another tag.
};

/// Records the ends of transfers. Throws DeviceError if a transfer failed for anything else than
/// damaged blocks.
void add_ends(const std::vector<transfer::Completion>& ends, PlanTimes& times);

/// Call this if a wait for the idle engine failed. Throws DeviceError if the device was lost, else
/// TimeoutError.
[[noreturn]] void throw_not_idle(const transfer::TransferEngine& engine);

/// Stores the blocks of all plans of one direction, one plan after the other, and returns when the
/// last one was submitted. Adds the submit times. Throws DeviceError or TimeoutError.
void store_plans(PipelineRig& rig, transfer::TransferEngine& engine, gpu::CopyDirection plans,
                 std::uint64_t first_transfer, PlanTimes& times);

/// Waits for the last end and records the ends. Throws DeviceError or TimeoutError.
void finish_burst(transfer::TransferEngine& engine, PlanTimes& times);

/// Lets the engine store the blocks that the rig's plans load, with the pattern of `key`, and wipes
/// them. So the slots hold what prepare() would write there, and have tags.
void store_for_loads(PipelineRig& rig, transfer::TransferEngine& engine, PatternKey key,
                     std::uint64_t first_transfer);

/// Submits every plan of the rig once, as fast as the transfer component takes them, and waits for
/// the last end. Returns the time from the first submission to the last end, by the host's clock,
/// which includes everything that a user waits for. Adds to `times`; the submit time of a store
/// that the ring took in parts is the sum over its parts. Throws DeviceError or TimeoutError.
[[nodiscard]] std::chrono::nanoseconds run_burst(PipelineRig& rig, transfer::TransferEngine& engine,
                                                 std::uint64_t first_transfer, PlanTimes& times);

}  // namespace kvferry::bench
