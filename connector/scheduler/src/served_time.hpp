// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>

namespace kvferry::connector {

/// The clock of the scheduler side's time-outs: it runs while the engine steps.
///
/// From a plan to its step's output time counts, at most `most_per_output`. So an engine whose
/// process was stopped within a step (SIGSTOP, a frozen cgroup, a debugger) has lost little. From
/// the last output to the next plan the engine makes its next step or is idle, and at most
/// kMostBetween of that counts. Not thread-safe.
class ServedTime {
 public:
  using Clock = std::chrono::steady_clock;
  /// Longer than the time that an engine takes between two steps.
  static constexpr std::chrono::nanoseconds kMostBetween = std::chrono::milliseconds(100);

  explicit ServedTime(std::chrono::nanoseconds most_per_output)
      : most_per_output_(std::max(most_per_output, std::chrono::nanoseconds(1))) {}

  /// A plan is sent. If other plans are out, its time has begun already.
  void on_plan(Clock::time_point now) {
    if (num_out_++ == 0) advance(now, std::min(kMostBetween, most_per_output_));
  }
  /// The output of the oldest plan that is out has come.
  void on_output(Clock::time_point now) {
    ++num_outputs_;
    if (num_out_ == 0) return;
    --num_out_;
    advance(now, most_per_output_);
  }

  [[nodiscard]] std::chrono::nanoseconds total() const { return total_; }
  [[nodiscard]] std::uint64_t num_outputs() const { return num_outputs_; }

 private:
  void advance(Clock::time_point now, std::chrono::nanoseconds most) {
    if (last_) {
      total_ +=
          std::clamp<std::chrono::nanoseconds>(now - *last_, std::chrono::nanoseconds(0), most);
    }
    last_ = now;
  }

  std::chrono::nanoseconds most_per_output_;
  std::chrono::nanoseconds total_{0};
  std::optional<Clock::time_point> last_;
  std::uint64_t num_out_ = 0;
  std::uint64_t num_outputs_ = 0;
};

}  // namespace kvferry::connector
