// SPDX-License-Identifier: Apache-2.0
#include "measure/co_run_phase.hpp"

#include "kvferry/base/error.hpp"

#include "measure/stopwatch.hpp"
#include "measure/wait_for.hpp"

#include <algorithm>
#include <map>

namespace kvferry::bench {
namespace {

using transfer::TransferKind;

constexpr SlabClassId kClass{0};

double seconds(std::chrono::nanoseconds time) {
  return std::chrono::duration<double>(time).count();
}

std::uint64_t arrived_bytes(const transfer::TransferStats& stats) {
  return stats.stored_bytes + stats.loaded_bytes;
}

}  // namespace

/// The plans of the steps of one run_beside(). A plan is offered again when its last transfer has
/// ended.
class CoRunLoop::Steps {
 public:
  Steps(CoRunLoop& loop, transfer::TransferEngine& engine, PlanTimes& times)
      : loop_(loop), rig_(loop.rig_), engine_(engine), times_(times) {
    for (const gpu::CopyDirection direction : directions(rig_.shape().traffic)) {
      auto& idle = direction == gpu::CopyDirection::kDeviceToHost ? idle_stores_ : idle_loads_;
      for (std::uint32_t p = 0; p < rig_.shape().num_plans; ++p) idle.push_back(p);
    }
  }

  /// What a step does after its forward pass.
  void submit() {
    take_ends();
    while (!idle_loads_.empty() && num_loading_ < kLoadsUnderWay) load();
    while (!idle_stores_.empty() && store()) {
    }
  }

  void take_ends() {
    const auto ends = engine_.poll();
    add_ends(ends, times_);
    for (const transfer::Completion& end : ends) {
      const auto plan = under_way_.extract(end.transfer);
      if (end.kind == TransferKind::kLoad) {
        --num_loading_;
        loop_.loaded_[plan.mapped()] = 1;
      }
      (end.kind == TransferKind::kLoad ? idle_loads_ : idle_stores_).push_back(plan.mapped());
    }
  }

 private:
  void load() {
    const std::uint32_t plan = take(idle_loads_);
    const TransferId transfer(loop_.next_transfer_++);
    under_way_.emplace(transfer, plan);
    ++num_loading_;
    const Stopwatch stopwatch;
    engine_.load(transfer, kClass, rig_.plan(gpu::CopyDirection::kHostToDevice, plan),
                 engine_.fence(rig_.compute()));
    add(stopwatch.cost());
  }

  /// Returns whether the ring took the whole plan. What it did not take is skipped, as in an
  /// engine.
  bool store() {
    const std::uint32_t plan = take(idle_stores_);
    const TransferId transfer(loop_.next_transfer_++);
    const auto blocks = rig_.plan(gpu::CopyDirection::kDeviceToHost, plan);
    const Stopwatch stopwatch;
    const std::uint32_t taken = engine_.gather(rig_.compute(), transfer, kClass, blocks);
    if (!engine_.seal(transfer)) {
      idle_stores_.push_back(plan);
      return false;
    }
    if (taken == blocks.size()) add(stopwatch.cost());
    under_way_.emplace(transfer, plan);
    loop_.stored_[plan] = std::max(loop_.stored_[plan], taken);
    return taken == blocks.size();
  }

  void add(const SubmitCost& cost) {
    times_.submit.add(cost.wall);
    times_.submit_cpu.add(cost.cpu);
  }

  static std::uint32_t take(std::vector<std::uint32_t>& idle) {
    const std::uint32_t plan = idle.front();
    idle.erase(idle.begin());
    return plan;
  }

  CoRunLoop& loop_;
  PipelineRig& rig_;
  transfer::TransferEngine& engine_;
  PlanTimes& times_;
  std::vector<std::uint32_t> idle_stores_;
  std::vector<std::uint32_t> idle_loads_;
  std::uint32_t num_loading_ = 0;
  std::map<TransferId, std::uint32_t> under_way_;
};

CoRunLoop::CoRunLoop(PipelineRig& rig, CoRunner& work, CoRunPlace place)
    : rig_(rig),
      work_(work),
      own_(place == CoRunPlace::kOwn ? rig.device().create_stream() : nullptr),
      stream_(own_ ? *own_ : rig.compute()) {
  for (std::uint32_t i = 0; i < kStepsAhead + 2; ++i) ends_.push_back(rig.device().create_event());
  forget();
}

void CoRunLoop::forget() {
  stored_.assign(rig_.shape().num_plans, 0);
  loaded_.assign(rig_.shape().num_plans, 0);
}

std::vector<std::uint32_t> CoRunLoop::loaded() const {
  std::vector<std::uint32_t> plans;
  for (std::uint32_t p = 0; p < loaded_.size(); ++p) {
    if (loaded_[p] != 0) plans.push_back(p);
  }
  return plans;
}

void CoRunLoop::run_alone(std::uint32_t count, Samples& iterations) {
  iterate(count, iterations, nullptr);
}

void CoRunLoop::run_beside(std::uint32_t count, transfer::TransferEngine& engine,
                           Samples& iterations, PlanTimes& plans) {
  Steps steps(*this, engine, plans);
  // The first steps only fill the ring and the link.
  Samples not_counted;
  iterate(kStepsAhead, not_counted, &steps);
  const std::uint64_t bytes_before = arrived_bytes(engine.stats());
  const auto begin = std::chrono::steady_clock::now();
  iterate(count, iterations, &steps);
  const auto time = std::chrono::steady_clock::now() - begin;
  bytes_per_second_ =
      static_cast<double>(arrived_bytes(engine.stats()) - bytes_before) / seconds(time);
  if (!engine.wait_idle(kHangs)) throw_not_idle(engine);
  steps.take_ends();
}

// An iteration lasts from the end of the previous one to its own end, so it includes the gathers in
// between.
void CoRunLoop::iterate(std::uint32_t count, Samples& iterations, Steps* steps) {
  const auto end = [this](std::uint32_t i) -> gpu::Event& { return *ends_[i % ends_.size()]; };
  const auto add = [&](std::uint32_t i) {
    wait_for(end(i));
    iterations.add(end(i).elapsed_since(end(i - 1)));
  };
  stream_.record(end(0));
  for (std::uint32_t i = 1; i <= count; ++i) {
    work_.submit(stream_);
    stream_.record(end(i));
    if (steps != nullptr) steps->submit();
    if (i > kStepsAhead) add(i - kStepsAhead);
  }
  for (std::uint32_t i = count - std::min(count, kStepsAhead) + 1; i <= count; ++i) add(i);
}

}  // namespace kvferry::bench
