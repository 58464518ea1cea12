// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "served_time.hpp"

#include <chrono>
#include <cstdint>
#include <functional>
#include <utility>

namespace kvferry::connector {

/// How long a load may wait until it begins. Only the time in which the engine steps counts: while
/// the engine is idle or stopped, a rank can do nothing for the load.
class LoadPatience {
 public:
  using Clock = ServedTime::Clock;
  /// A load has at least this many steps before it times out.
  static constexpr std::int64_t kOutputs = 16;

  LoadPatience(std::chrono::nanoseconds timeout, std::function<Clock::time_point()> now)
      : timeout_(timeout), now_(std::move(now)), served_(timeout / kOutputs) {}

  void on_plan() { served_.on_plan(now()); }
  void on_output() { served_.on_output(now()); }
  /// The stamp of orders that the last plan sent.
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
