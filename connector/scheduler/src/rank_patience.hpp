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

/// How long ranks may keep silent about what they were sent.
///
/// A rank that has anything under way says so in every step's report. So what is measured is the
/// silence of a rank and not the age of a transfer: a rank that is slow is never lost, and one that
/// has forgotten a transfer is. Silence is counted by the time in which the engine stepped
/// (ServedTime) and by outputs of steps, because a rank speaks in those only: a rest counts
/// nothing, whatever its length, and the first report after it is heard before any rank is judged.
/// Called by the scheduler's thread alone.
class RankPatience {
 public:
  using Clock = ServedTime::Clock;
  /// Outputs without a word that a rank has at least, however long they took.
  static constexpr std::uint64_t kOutputs = 16;

  /// When something was sent, or a rank was heard.
  struct Stamp {
    PlanSeq plan;
    std::chrono::nanoseconds served{0};
    std::uint64_t num_outputs = 0;
  };

  RankPatience(std::chrono::nanoseconds timeout, std::function<Clock::time_point()> now,
               std::uint32_t world_size)
      : timeout_(timeout), now_(std::move(now)), served_(timeout / kOutputs), heard_(world_size) {}

  /// A plan goes out.
  void on_plan(PlanSeq plan) {
    plan_ = plan;
    served_.on_plan(now());
  }
  /// The output of a step has come, with reports or without.
  void on_output() { served_.on_output(now()); }
  /// The rank says which plan it executed last, and which transfer is the oldest that it has under
  /// way (0: none).
  void hear(RankId rank, PlanSeq executed, TransferId oldest) {
    Heard& heard = heard_.at(rank.value());
    // The same word once more is no sign of life.
    if (executed <= heard.executed) return;
    heard = {executed, oldest, stamp()};
  }

  /// What is sent with the last plan has this stamp.
  [[nodiscard]] Stamp stamp() const { return {plan_, served_.total(), served_.num_outputs()}; }
  /// How long ago that was, if it was too long ago.
  [[nodiscard]] std::optional<std::chrono::seconds> overdue(const Stamp& since) const {
    const std::chrono::nanoseconds age = served_.total() - since.served;
    if (age <= timeout_ || served_.num_outputs() - since.num_outputs < kOutputs) {
      return std::nullopt;
    }
    return std::chrono::duration_cast<std::chrono::seconds>(age);
  }
  /// How long the rank has said nothing of a transfer that was sent at `sent` and that it has not
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
