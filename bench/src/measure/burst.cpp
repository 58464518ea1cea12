// SPDX-License-Identifier: Apache-2.0
#include "measure/burst.hpp"

#include "kvferry/base/deadline.hpp"
#include "kvferry/base/error.hpp"

#include "measure/stopwatch.hpp"
#include "measure/wait_for.hpp"

#include <fmt/format.h>

#include <span>

namespace kvferry::bench {
namespace {

// How long to wait while the ring is full: much shorter than a piece takes to leave it.
constexpr std::chrono::microseconds kRingPoll{10};
constexpr SlabClassId kClass{0};

/// Stores the blocks of all plans of one direction, one after the other.
class StoreFeeder {
 public:
  StoreFeeder(PipelineRig& rig, transfer::TransferEngine& engine, gpu::CopyDirection plans,
              std::uint64_t first_transfer, PlanTimes& times)
      : rig_(rig), engine_(engine), plans_(plans), next_transfer_(first_transfer), times_(times) {}

  [[nodiscard]] bool done() const { return plan_ == rig_.shape().num_plans; }
  /// Submits as much as the ring takes now.
  void feed() {
    while (!done()) {
      const auto rest = rig_.plan(plans_, plan_).subspan(num_gathered_);
      const Stopwatch stopwatch;
      const std::uint32_t taken =
          engine_.gather(rig_.compute(), TransferId(next_transfer_), kClass, rest);
      if (taken == 0) return;
      num_gathered_ += taken;
      const bool whole = num_gathered_ == rig_.shape().blocks_per_plan;
      if (whole) engine_.seal(TransferId(next_transfer_));
      const SubmitCost cost = stopwatch.cost();
      cost_.wall += cost.wall;
      cost_.cpu += cost.cpu;
      if (!whole) continue;
      times_.submit.add(cost_.wall);
      times_.submit_cpu.add(cost_.cpu);
      cost_ = {};
      ++next_transfer_;
      ++plan_;
      num_gathered_ = 0;
    }
  }

 private:
  PipelineRig& rig_;
  transfer::TransferEngine& engine_;
  const gpu::CopyDirection plans_;
  std::uint64_t next_transfer_;
  PlanTimes& times_;
  std::uint32_t plan_ = 0;
  std::uint32_t num_gathered_ = 0;
  /// The cost of submitting this plan so far.
  SubmitCost cost_;
};

void load_all(PipelineRig& rig, transfer::TransferEngine& engine, std::uint64_t first_transfer,
              PlanTimes& times) {
  for (std::uint32_t p = 0; p < rig.shape().num_plans; ++p) {
    const Stopwatch stopwatch;
    engine.load(TransferId(first_transfer + p), kClass,
                rig.plan(gpu::CopyDirection::kHostToDevice, p), engine.fence(rig.compute()));
    const SubmitCost cost = stopwatch.cost();
    times.submit.add(cost.wall);
    times.submit_cpu.add(cost.cpu);
  }
}

}  // namespace

void add_ends(const std::vector<transfer::Completion>& ends, PlanTimes& times) {
  for (const transfer::Completion& end : ends) {
    times.num_damaged += end.damaged.size();
    if (!end.damaged.empty()) continue;
    if (end.outcome != Outcome::kDone) {
      throw DeviceError(fmt::format("transfer {} failed: {}", end.transfer.value(), end.reason));
    }
    times.queue.add(end.queue_time);
    times.device.add(end.device_time);
  }
}

void throw_not_idle(const transfer::TransferEngine& engine) {
  if (const auto quarantine = engine.quarantine()) throw DeviceError(to_string(*quarantine));
  throw TimeoutError("transfers have not ended within 5 minutes: the device hangs");
}

void store_plans(PipelineRig& rig, transfer::TransferEngine& engine, gpu::CopyDirection plans,
                 std::uint64_t first_transfer, PlanTimes& times) {
  StoreFeeder stores(rig, engine, plans, first_transfer, times);
  const Deadline deadline(kHangs);
  for (stores.feed(); !stores.done(); stores.feed()) {
    // The ring is full although nothing is under way: it is too small for one block, or part of it
    // is in quarantine.
    if (engine.wait_idle(kRingPoll) && engine.stats().ring_used_bytes > 0) {
      add_ends(engine.poll(), times);
      throw DeviceError("the staging ring takes no more stores");
    }
    if (deadline.passed()) throw TimeoutError("stores do not get through the ring: it hangs");
  }
}

void finish_burst(transfer::TransferEngine& engine, PlanTimes& times) {
  if (!engine.wait_idle(kHangs)) throw_not_idle(engine);
  add_ends(engine.poll(), times);
}

void store_for_loads(PipelineRig& rig, transfer::TransferEngine& engine, PatternKey key,
                     std::uint64_t first_transfer) {
  PlanTimes not_counted;
  rig.write_blocks(gpu::CopyDirection::kHostToDevice, key);
  store_plans(rig, engine, gpu::CopyDirection::kHostToDevice, first_transfer, not_counted);
  finish_burst(engine, not_counted);
  rig.wipe_loads();
}

std::chrono::nanoseconds run_burst(PipelineRig& rig, transfer::TransferEngine& engine,
                                   std::uint64_t first_transfer, PlanTimes& times) {
  const Traffic traffic = rig.shape().traffic;
  const auto begin = std::chrono::steady_clock::now();
  if (traffic != Traffic::kDeviceToHost) load_all(rig, engine, first_transfer, times);
  if (traffic != Traffic::kHostToDevice) {
    store_plans(rig, engine, gpu::CopyDirection::kDeviceToHost,
                first_transfer + rig.shape().num_plans, times);
  }
  const bool idle = engine.wait_idle(kHangs);
  const auto time = std::chrono::steady_clock::now() - begin;
  if (!idle) throw_not_idle(engine);
  add_ends(engine.poll(), times);
  return time;
}

}  // namespace kvferry::bench
