// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvferry/base/ids.hpp"

#include "served_time.hpp"

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

namespace kvferry::connector {

/// How long ranks may be silent about what was sent to them.
///
/// A rank that has anything under way reports in every step. So the measure is the silence of a
/// rank and not the age of a transfer: a slow rank is never lost, but a rank that has forgotten a
/// transfer is. Silence is measured by the time in which the engine steps (ServedTime) and by
/// outputs of steps, because a rank reports only in those. An idle time counts nothing, however
/// long it is, and the first report after it is heard before any rank is judged. Called by the
/// scheduler's thread alone.
class RankPatience {
 public:
  using Clock = ServedTime::Clock;
  /// A rank has at least this many outputs to report in, however long they took.
  static constexpr std::uint64_t kOutputs = 16;

  /// The time when something was sent, or when a rank was heard.
  struct Stamp {
    PlanSeq plan;
    std::chrono::nanoseconds served{0};
    std::uint64_t num_outputs = 0;
  };

  RankPatience(std::chrono::nanoseconds timeout, std::function<Clock::time_point()> now,
               std::uint32_t world_size)
      : timeout_(timeout), now_(std::move(now)), served_(timeout / kOutputs), heard_(world_size) {}

  /// A plan is sent.
  void on_plan(PlanSeq plan) {
    plan_ = plan;
    served_.on_plan(now());
  }
  /// The output of a step has come, with reports or without.
  void on_output() { served_.on_output(now()); }
  /// The rank reports which plan it executed last, and the oldest transfer that it has under way
  /// (0: none).
  void hear(RankId rank, PlanSeq executed, TransferId oldest) {
    Heard& heard = heard_.at(rank.value());
    // The same report once more is no sign of life.
    if (executed <= heard.executed) return;
    heard = {executed, oldest, stamp()};
  }

  /// The stamp of everything that the last plan sends.
  [[nodiscard]] Stamp stamp() const { return {plan_, served_.total(), served_.num_outputs()}; }
  /// How long ago that was, if that is too long.
  [[nodiscard]] std::optional<std::chrono::seconds> overdue(const Stamp& since) const {
    const std::chrono::nanoseconds age = served_.total() - since.served;
    if (age <= timeout_ || served_.num_outputs() - since.num_outputs < kOutputs) {
      return std::nullopt;
    }
    return std::chrono::duration_cast<std::chrono::seconds>(age);
  }
  /// How long the rank has been silent about a transfer that was sent at `sent` and that it has not
  /// ended, if that is too long.
  [[nodiscard]] std::optional<std::chrono::seconds> silent(RankId rank, TransferId transfer,
                                                           const Stamp& sent) const {
    const Heard& heard = heard_.at(rank.value());
    const bool comes_to_it = heard.executed < sent.plan;
    const bool has_it = heard.oldest != TransferId() && heard.oldest <= transfer;
    const bool vouches = heard.executed != PlanSeq() && (comes_to_it || has_it);
    return overdue(vouches && heard.at.served > sent.served ? heard.at : sent);
  }

 private:
  struct Heard {
    PlanSeq executed;
    TransferId oldest;
    Stamp at;
  };
  [[nodiscard]] Clock::time_point now() const { return now_ ? now_() : Clock::now(); }

  std::chrono::nanoseconds timeout_;
  std::function<Clock::time_point()> now_;
  ServedTime served_;
  PlanSeq plan_;
  std::vector<Heard> heard_;
};

}  // namespace kvferry::connector
