// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/ids.hpp"

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <utility>

namespace kvferry::connector {

/// What ranks have kept silent about for too long.
struct Overdue {
  std::string what;         ///< One such transfer: which, and whose.
  std::set<RankId> silent;  ///< The ranks that owe this or another one.
  std::chrono::seconds age{0};
};

/// How long ranks may keep silent about what they were sent. Time alone does not count: an engine
/// that rests sends no plans and hears nothing, so plans must have been sent since, too.
class RankPatience {
 public:
  using Clock = std::chrono::steady_clock;
  /// More plans than an engine has steps in flight (pipeline stages with asynchronous scheduling).
  static constexpr std::uint64_t kPlans = 16;

  struct Stamp {
    Clock::time_point at;
    std::uint64_t num_plans = 0;
  };

  RankPatience(std::chrono::nanoseconds timeout, std::function<Clock::time_point()> now)
      : timeout_(timeout), now_(std::move(now)) {}

  /// A plan is being made. Stamps of one plan are equal.
  void on_plan() { stamp_ = {now_ ? now_() : Clock::now(), stamp_.num_plans + 1}; }
  [[nodiscard]] Stamp stamp() const { return stamp_; }
  /// How long ago that was, if it was too long ago.
  [[nodiscard]] std::optional<std::chrono::seconds> overdue(const Stamp& since) const {
    const Clock::duration age = stamp_.at - since.at;
    if (age <= timeout_ || stamp_.num_plans - since.num_plans < kPlans) return std::nullopt;
    return std::chrono::duration_cast<std::chrono::seconds>(age);
  }

 private:
  std::chrono::nanoseconds timeout_;
  std::function<Clock::time_point()> now_;
  Stamp stamp_;
};

}  // namespace kvferry::connector
