// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "served_time.hpp"

#include <chrono>
#include <cstdint>
#include <functional>
#include <utility>

namespace kvferry::connector {

/// How long a load may wait until it begins. By the time in which the engine stepped: a load that
/// waits for an engine which rests, or was stopped, waits for nothing that a rank could do.
class LoadPatience {
 public:
  using Clock = ServedTime::Clock;
  /// The time-out takes as many steps at least.
  static constexpr std::int64_t kOutputs = 16;

  LoadPatience(std::chrono::nanoseconds timeout, std::function<Clock::time_point()> now)
      : timeout_(timeout), now_(std::move(now)), served_(timeout / kOutputs) {}

  void on_plan() { served_.on_plan(now()); }
  void on_output() { served_.on_output(now()); }
  /// What is sent with the last plan was sent then.
  [[nodiscard]] std::chrono::nanoseconds stamp() const { return served_.total(); }
  [[nodiscard]] bool has_ended(std::chrono::nanoseconds sent) const {
    return served_.total() - sent > timeout_;
  }

 private:
  [[nodiscard]] Clock::time_point now() const { return now_ ? now_() : Clock::now(); }

  std::chrono::nanoseconds timeout_;
  std::function<Clock::time_point()> now_;
  ServedTime served_;
};

}  // namespace kvferry::connector
